"""Bytes → pixels: the guarded decoder, folders of images, what they are like, and drawn pictures."""
