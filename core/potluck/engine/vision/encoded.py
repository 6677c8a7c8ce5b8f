"""The pictures that a stage's tower has read lately: their rows, by the picture's name."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.vision.tower import Tower
from potluck.errors import InvalidStepError
from potluck.model.footprint import kept_picture_bytes
from potluck.wire.activation_messages import PictureRows


class EncodedPictures:
    """Reads each picture once, and forgets those used least recently, but never the last one."""

    def __init__(self, tower: Tower | None) -> None:
        """Without a tower, no picture can be read."""
        self._tower = tower
        self._limit = 0 if tower is None else kept_picture_bytes(tower.spec)
        self._rows: OrderedDict[str, Tensor] = OrderedDict()

    def read(
        self, picture: str, pixels: Tensor, *, mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        """Have the tower read a picture, unless its rows are here.

        Args:
            picture: its name.
            pixels: (H, W, 3), u8.
            mean: of red, green and blue from 0 to 1, which is subtracted.
            deviation: by which they are divided then.

        Raises:
            InvalidStepError: there is no tower, or the picture is of no size that it takes.
        """
        if self._tower is None:
            raise InvalidStepError("A picture came, and this part of the model cannot read any.")
        spec = self._tower.spec
        if not spec.takes(pixels.shape[0], pixels.shape[1]):
            raise InvalidStepError(
                f"A picture of {pixels.shape[1]} x {pixels.shape[0]} pixels came, and the model takes whole cells of"
                f" {spec.cell_side}. The other computer runs another version."
            )
        if picture in self._rows:
            self._rows.move_to_end(picture)
            return
        numbers = pixels.float().div_(255)
        numbers.sub_(torch.tensor(mean)).div_(torch.tensor(deviation))
        self._rows[picture] = self._tower(numbers)
        while len(self._rows) > 1 and self._nbytes > self._limit:
            self._rows.popitem(last=False)

    @property
    def _nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows.values())

    def has(self, some: PictureRows) -> bool:
        """Whether these rows are here."""
        rows = self._rows.get(some.picture)
        return rows is not None and some.first + some.rows <= len(rows)

    def rows(self, some: PictureRows) -> Tensor:
        """These rows, (n, out · (1 + deep layers)), f32, which must be here."""
        self._rows.move_to_end(some.picture)
        return self._rows[some.picture][some.first :][: some.rows]
