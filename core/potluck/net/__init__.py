"""Finding, knowing and reaching other nodes: asyncio, and no torch."""
