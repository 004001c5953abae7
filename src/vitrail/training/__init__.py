"""Training: recipes as data, one short loop, and runs that resume bit for bit (`vitrail.train`)."""
