"""Messages between the ranks of a group, which compute the same layers together.

Each connects with each other one, by a connection of the purpose `ranks`. There, every rank sends its rows
of a sum to all others, and adds what it gets in the order of the ranks. Ranks that are processes of one computer
agree beforehand whether they sum in memory that they share, and then say only which steps they cannot do.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from potluck.wire.fields import Count, Text, printable
from potluck.wire.messages import Message
from potluck.wire.shares import RankNumber

Token = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class MemoryPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where memory is that a process of this computer shares."""

    token: Token  # which it begins with
    process: Count = 0  # on Linux: the file that this process has open by this number
    descriptor: Count = 0


class JoinRanks(Message, frozen=True, tag="join_ranks"):
    """The first message on a connection, from who dialled: it is this rank of the plan's group."""

    epoch: Count
    rank: RankNumber


class Partial(Message, frozen=True, tag="partial"):
    """The sender's part of a sum. Payload: rows of F32, row-major and little-endian."""

    rank_step: Count  # as in the `forward` that rank 0 passed on
    number: Count  # of the sum in this step, from 0


class OfferSums(Message, frozen=True, tag="offer_sums"):
    """From rank 0 to each other one, if all are processes of one computer: how their sums could be made."""

    memory: MemoryPlace | None = None  # None: not in memory
    communicator: Token | None = None  # of the devices themselves, if these are GPUs


class AnswerSums(Message, frozen=True, tag="answer_sums"):
    """To rank 0: whether the sender can make sums so."""

    can_share: bool
    can_collect: bool = False  # on the devices themselves


class ChooseSums(Message, frozen=True, tag="choose_sums"):
    """From rank 0 to each other one: how the sums are made from now on."""

    by: Literal["links", "memory", "devices"]


class AbortStep(Message, frozen=True, tag="abort_step"):
    """The sender cannot do the step, so nobody can: there will be no more sums of it."""

    rank_step: Count
    kind: Annotated[str, Meta(max_length=64)]  # a `code` of potluck.errors
    message: Text
    position: Count | None = None  # need_replay: where the sender's cache ends

    def __post_init__(self) -> None:
        force_setattr(self, "message", printable(self.message))
