"""The process that computes: the only room with torch. Its node starts it and talks to it over a pipe."""
