"""The Chat page."""
