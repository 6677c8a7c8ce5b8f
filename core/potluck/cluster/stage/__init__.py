"""The stage process, the only room with torch. Its node starts it and talks to it over a pipe."""
