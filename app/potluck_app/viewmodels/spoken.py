"""What a screen reader says of a reply while it grows: whole sentences, each once. Pure."""

import re

_END = re.compile(r"[.!?…:][\"'”’)\]*_]*\s|\n")  # noqa: RUF001 - closing marks of any language


class Spoken:
    """What of a text that grows has been said."""

    def __init__(self) -> None:
        self._said = 0  # characters

    def more(self, text: str, *, is_done: bool) -> str:
        """Return the sentences that are whole now and were not before; at the end, all that is left."""
        end = len(text)
        if not is_done:
            ends = [found.end() for found in _END.finditer(text, self._said)]
            end = ends[-1] if ends else self._said
        said, self._said = text[self._said : end].strip(), max(end, self._said)
        return said
