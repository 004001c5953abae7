"""Labelled images: readers for dataset formats, and fetching."""
