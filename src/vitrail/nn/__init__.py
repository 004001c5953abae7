"""PyTorch modules: image → tokens → vector → logits, one file per step."""
