"""From the last hidden states to the token that is chosen."""
