"""Labelled images: datasets in their own formats, and how they are fetched."""
