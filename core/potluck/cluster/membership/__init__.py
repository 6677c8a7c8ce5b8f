"""Which computers belong to the home, which of them are there, and how one is let in."""
