"""What this computer lends, to whom, and what it holds for them."""
