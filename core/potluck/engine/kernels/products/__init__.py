"""Products with packed and plain weights, and how these are packed."""
