"""Healing: an adapted model gets the original's features back, from unlabelled images alone (`vitrail.heal`)."""
