"""Which rank of a group a computer is, and which part of each layer it has: fields of messages."""

from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.model.shares import MAX_PART, MAX_RANKS, Share

RankNumber = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of each layer a rank of a group has."""

    rank: RankNumber
    shares: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MAX_PART)], ...],
        Meta(min_length=2, max_length=MAX_RANKS),
    ]
    """How much every rank has, relative to the others, in the order of the ranks."""

    @property
    def share(self) -> Share:
        """The same, as plans and caches have it. Raise ValueError for a rank that the group does not have."""
        return Share(rank=self.rank, parts=self.shares)
