"""Weights on disk, by content."""
