"""The studio as a static site: a page with the API, the planner and the models inside it, for any host or disk."""
