"""Messages between the ranks of a group, which compute the same layers together.

Each connects with each other one, by a connection of the purpose `ranks`. There, every rank sends its rows
of a sum to all others, and adds what it gets in the order of the ranks.
"""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import force_setattr

from potluck.wire.fields import Count, Text, printable
from potluck.wire.messages import MAX_RANKS, Message

RankNumber = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]


class JoinRanks(Message, frozen=True, tag="join_ranks"):
    """The first message on a connection, from who dialled: it is this rank of the plan's group."""

    epoch: Count
    rank: RankNumber


class Partial(Message, frozen=True, tag="partial"):
    """The sender's part of a sum. Payload: rows of F32, row-major and little-endian."""

    rank_step: Count  # as in the `forward` that rank 0 passed on
    number: Count  # of the sum in this step, from 0


class AbortStep(Message, frozen=True, tag="abort_step"):
    """The sender cannot do the step, so nobody can: there will be no more sums of it."""

    rank_step: Count
    kind: Annotated[str, Meta(max_length=64)]  # a `code` of potluck.errors
    message: Text
    position: Count | None = None  # need_replay: where the sender's cache ends

    def __post_init__(self) -> None:
        force_setattr(self, "message", printable(self.message))
