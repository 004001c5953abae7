"""The server of the studio (`vitrail.studio`): a local page that shows what a ViT's front end does to your image."""
