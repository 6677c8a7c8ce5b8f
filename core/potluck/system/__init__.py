"""What each operating system does in its own way: looks at the computer, its start, its sleep."""
