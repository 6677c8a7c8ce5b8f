"""What keeps the computers of a home apart: looks at this one, and findings about what was seen."""
