"""The Settings page, and the keys of the window."""
