"""Messages by which the master of a home makes one of its workers the main computer in its place.

The master stays the master of its own home. What is handed over are the computers: each of them, and the
master itself, gets a token of the other computer's home, and joins it as a worker.
"""

from typing import Annotated

from msgspec import Meta, Struct

from potluck.wire.fields import Hex, Name, Size
from potluck.wire.messages import Message

TokenText = Annotated[str, Meta(min_length=1, max_length=512)]  # as `wire/token.py` writes it


class Known(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a home's owner decided about one of its computers. It holds in the next home, too."""

    color: Annotated[int, Meta(ge=0, lt=256)] = 0
    alias: Name = ""  # what the home calls it; "": as it calls itself
    paused: bool = False
    memory: Size | None = None  # bytes of each device that plans use at most


class TakeOver(Message, frozen=True, tag="take_over"):
    """Be the main computer from now on, and lend nothing. Asked again, it gives another token.

    `only_asks`: nothing is changed; the answer, without a token, or the error says whether it would.
    `known`: of the computer that takes over.
    """

    only_asks: bool = False
    known: Known | None = None


class TakenOver(Message, frozen=True, tag="taken_over"):
    """It is done: with this token the asking master, and nobody else, joins this computer's home."""

    token: TokenText | None = None


class Invite(Message, frozen=True, tag="invite"):
    """This computer is to follow, too. Only who was taken over from may ask, of few computers."""

    node_id: Hex
    known: Known | None = None  # of the computer that is to follow


class Invited(Message, frozen=True, tag="invited"):
    """A token that the named computer alone can use."""

    token: TokenText


class Follow(Message, frozen=True, tag="follow"):
    """Join the home of this token, in place of this one."""

    token: TokenText


class Followed(Message, frozen=True, tag="followed"):
    """It is done, or was done before. The master may forget this computer."""
