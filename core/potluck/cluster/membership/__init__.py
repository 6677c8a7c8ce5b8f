"""Which computers belong to the home, which of them are connected, and how one is paired."""
