"""Mixers with a recurrent state: gated delta nets and state spaces."""
