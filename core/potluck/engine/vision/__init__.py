"""The vision tower: rows for the decoder from a picture, in torch."""
