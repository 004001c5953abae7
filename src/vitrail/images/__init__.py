"""Bytes → pixels: decoding, and where images come from."""
