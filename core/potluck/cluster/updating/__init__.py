"""Newer versions on this computer and in its home: looked for with consent, fetched, tried, and switched to at rest."""
