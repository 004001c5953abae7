"""The studio: a local web page that shows what a ViT's front end does to your image, and what each choice costs."""
