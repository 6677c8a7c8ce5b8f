"""A streamed reply as one text, for those that show it: its reasoning stands in tags."""

from potluck.api.v1.answer_shapes import Delta

THINK, THOUGHT = "<think>", "</think>"


class TaggedReply:
    """Joins the pieces of one reply.

    With `without_thoughts` the reasoning is left out: behind an answer that goes on, it has no place.
    """

    def __init__(self, *, without_thoughts: bool = False) -> None:
        self._thinks = False
        self._without_thoughts = without_thoughts

    def more(self, delta: Delta) -> str:
        """The text that a piece adds."""
        text = ""
        thought = "" if self._without_thoughts else delta.reasoning_content
        if isinstance(thought, str) and thought:
            text += thought if self._thinks else f"{THINK}\n{thought}"
            self._thinks = True
        if isinstance(delta.content, str) and delta.content:
            text += f"\n{THOUGHT}\n\n{delta.content}" if self._thinks else delta.content
            self._thinks = False
        return text
