"""Nodes working together: membership, plans in force, generation."""
