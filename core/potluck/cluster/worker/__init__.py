"""The worker: what this computer lends, to which master, and what it holds for that master."""
