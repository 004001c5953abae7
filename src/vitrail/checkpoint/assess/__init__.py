"""What surgery and a checkpoint amount to: descriptions, drift on images, losses between grids, pages and pictures."""
