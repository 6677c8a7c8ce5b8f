"""What the views show, as plain values and models: little Qt, no widgets, no network."""
