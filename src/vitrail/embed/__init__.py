"""Embed any number of images, resumably: engines that run a model, jobs over folders, and search."""
