"""What the parts of an answer are."""

from typing import TypeAlias

from msgspec import Struct


class Text(Struct, frozen=True, tag=True):
    """More of the answer proper."""

    text: str


class Thought(Struct, frozen=True, tag=True):
    """More of the reasoning."""

    text: str


class CallBegins(Struct, frozen=True, tag=True):
    """A call of a tool begins; it ends where the next one begins, or the answer ends."""

    name: str


class CallArguments(Struct, frozen=True, tag=True):
    """More of the JSON text of the arguments of the last call."""

    text: str


Part: TypeAlias = Text | Thought | CallBegins | CallArguments
