"""The window and the tray: a client of the node's local API."""
