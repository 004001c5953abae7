"""Surgery: adapt weights to another config, with a list of all changes."""
