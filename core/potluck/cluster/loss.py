"""What everybody says of a computer that is gone."""

from potluck.errors import PeerLostError


def computer_lost(name: str, how: str = "stopped answering") -> PeerLostError:
    """A computer that holds a part of the model is gone; the sentence names it."""
    return PeerLostError(
        f"{name} {how}, and it held a part of the model. The answer was interrupted; the next one"
        " runs on the computers that are left.",
        name=name,
    )
