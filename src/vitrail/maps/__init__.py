"""A folder of images as a map (`vitrail.atlas`): similar images are near each other."""
