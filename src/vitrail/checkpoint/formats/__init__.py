"""Files on disk → names and tensors, checked before anything is trusted; and back, whole or not at all."""
