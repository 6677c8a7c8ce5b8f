"""What mixes a token with those before it, as specifications: attention of each kind, recurrent states; and residual streams."""
