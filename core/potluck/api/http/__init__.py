"""What all endpoints stand on: the listener and its guard, bodies, streams."""
