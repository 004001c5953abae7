"""Image → tokens → vector → logits, one file per station."""
