"""The values of the local API, which the node shares with the window and the commands."""
