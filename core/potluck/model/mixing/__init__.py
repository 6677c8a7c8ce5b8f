"""What mixes a token with those before it: attention of each kind, and recurrent states, as specifications."""
