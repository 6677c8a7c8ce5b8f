"""Models that the user has or can have: on this computer, and on the Hugging Face Hub."""
