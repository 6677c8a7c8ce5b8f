"""How long a link waits for a peer that does not read, and how much it keeps for it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The limits of one link; beyond one of them, but `inbox`, the link ends.

    Attributes:
        inbox: bytes that wait to be received before reading stops: a few chunks.
        unread_answers: messages that were answered while the peer reads nothing. A pong has 30
            bytes; heartbeats alone take 15 min to get here.
        backlog: bytes that a step link keeps for a peer: the chunks of four prompts of a large model.
        stall_s: seconds in which the peer takes nothing. The largest frame, 64 MiB, takes 60 s at
            9 Mbit/s.
    """

    inbox: int = 16 << 20
    unread_answers: int = 1000
    backlog: int = 1 << 30
    stall_s: float = 60.0


LINK_LIMITS: Final = LinkLimits()
