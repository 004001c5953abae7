"""Images → vectors: pixels, engines, packed batches, exports; any number of images, resumable."""
