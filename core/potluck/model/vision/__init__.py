"""What a vision tower is made of, and how pictures are prepared for it."""
