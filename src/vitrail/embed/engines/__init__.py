"""uint8 images → vectors: what runs a model fast, in float32 or in 8 bits, on packed, merged or adaptive tokens."""
