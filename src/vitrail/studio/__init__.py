"""The studio: a local page that shows what a front end does to your image, and what choices cost."""
