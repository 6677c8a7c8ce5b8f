"""A streamed reply as one text, for those that show it: its reasoning stands in tags."""

from potluck.api.openai import Delta

THINK, THOUGHT = "<think>", "</think>"


class TaggedReply:
    """Joins the pieces of one reply."""

    def __init__(self) -> None:
        self._thinks = False

    def more(self, delta: Delta) -> str:
        """The text that a piece adds."""
        text = ""
        if isinstance(delta.reasoning_content, str) and delta.reasoning_content:
            text += (
                delta.reasoning_content if self._thinks else f"{THINK}\n{delta.reasoning_content}"
            )
            self._thinks = True
        if isinstance(delta.content, str) and delta.content:
            text += f"\n{THOUGHT}\n\n{delta.content}" if self._thinks else delta.content
            self._thinks = False
        return text
