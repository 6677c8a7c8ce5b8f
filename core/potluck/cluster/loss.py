"""The errors for a lost computer of the plan."""

from potluck.errors import (
    EngineError,
    NeedReplayError,
    PeerLostError,
    PotluckError,
    UnknownSessionError,
)

RENEWED = "started its compute process anew"  # because its owner has it use other GPUs
CACHE_LOST = (NeedReplayError, UnknownSessionError)  # of a step: its conversation's cache is gone


def computer_lost(name: str, how: str = "stopped answering") -> PeerLostError:
    """The error of a pipeline. Its message begins with `name` and `how`."""
    return PeerLostError(f"{name} {how} while it computed a part of the model.", name=name)


def process_lost(*, is_hung: bool) -> str:
    """How a computer lost its stage, as `how` of the other functions."""
    if is_hung:
        return "has a compute process that did not answer"
    return "lost its compute process"


def lost_while_loading(name: str, how: str) -> PeerLostError:
    """The error of a load under way. Its message begins with `name` and `how`."""
    return PeerLostError(
        f"{name} {how} before the model was ready. See that it is on and connected and that Potluck runs"
        " there, then load the model again: what it has received is kept.",
        name=name,
    )


def cannot_load(lost: PotluckError, why: PotluckError) -> PotluckError:
    """The error of a load that lost a computer and cannot do without it, as `why` says."""
    return PeerLostError(
        f"{lost.message} The model cannot be loaded without it. {why.message}",
        **{**why.data, **lost.data},
    )


def cannot_go_on(broken: PotluckError, why: PotluckError) -> PotluckError:
    """The error of an answer that ends because no other pipeline can be had.

    Args:
        broken: what broke its pipeline.
        why: why there is no other one.
    """
    if why.message in broken.message:
        return broken
    error = PeerLostError(f"{broken.message} The answer cannot go on. {why.message}")
    error.data = {**why.data, **broken.data}
    return error


def lost_too_often(error: PotluckError) -> PotluckError:
    """The error of an answer whose steps failed again and again, the last one with `error`."""
    if isinstance(error, CACHE_LOST):
        return EngineError("A computer keeps losing this conversation's cache. Try a new one.")
    return error
