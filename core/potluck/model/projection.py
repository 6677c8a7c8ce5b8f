"""A matrix as it is computed with, and the tensors of files that it is made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from potluck.model.quantized import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix in the form used for computing: the rows of one or more matrices of the files.

    Names are those of the files, without the layer's prefix and without `.weight`.
    """

    parts: tuple[str, ...]
    rows: tuple[int, ...]  # of each part
    width: int
    has_bias: bool = False

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        """Names and shapes of what the files hold, each weight before its bias."""
        for part, rows in zip(self.parts, self.rows, strict=True):
            yield f"{part}.weight", (rows, self.width)
            if self.has_bias:
                yield f"{part}.bias", (rows,)

    def split(self) -> "list[Projection]":
        """Each part as a projection of its own."""
        pairs = zip(self.parts, self.rows, strict=True)
        return [replace(self, parts=(part,), rows=(rows,)) for part, rows in pairs]
