"""Attention over cached tokens: of one token, of many, latent, and of those that an indexer chooses."""
