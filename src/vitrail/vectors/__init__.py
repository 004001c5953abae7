"""Images to vectors, any number of them (`vitrail.embed`, `vitrail.search`): engines, resumable jobs, and search."""
