"""The errors for a lost computer of the plan."""

from potluck.errors import PeerLostError


def computer_lost(name: str, how: str = "stopped answering") -> PeerLostError:
    """The error of an answer under way. Its message begins with `name` and `how`."""
    return PeerLostError(
        f"{name} {how}, and it held a part of the model. The answer was interrupted; the next one"
        " runs on the computers that are left.",
        name=name,
    )


def lost_while_loading(name: str, how: str) -> PeerLostError:
    """The error of a load under way. Its message begins with `name` and `how`."""
    return PeerLostError(
        f"{name} {how} before the model was ready. What it has received stays there:"
        " load the model again to go on.",
        name=name,
    )
