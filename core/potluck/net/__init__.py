"""Finds, identifies and connects nodes. Uses asyncio; does not import torch."""
