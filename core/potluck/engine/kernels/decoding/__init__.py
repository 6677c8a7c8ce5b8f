"""One token through all layers of a stage in one call."""
