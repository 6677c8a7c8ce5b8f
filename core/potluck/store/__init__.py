"""Weights on disk, addressed by content."""
