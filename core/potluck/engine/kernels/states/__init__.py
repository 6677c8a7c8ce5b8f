"""Mixers with a recurrent state: gated delta nets, state spaces and short convolutions."""
