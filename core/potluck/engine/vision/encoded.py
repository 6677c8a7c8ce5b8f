"""The pictures that a stage's tower has read lately: their rows, by the picture's name."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.vision.tower import Tower
from potluck.errors import InvalidStepError
from potluck.model.footprint import kept_picture_bytes
from potluck.wire.activation_messages import PictureRows


class _Coming:
    """A picture whose rows come from another tower."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self._filled = rows, 0

    def take(self, rows: Tensor, first: int, total: int) -> bool:
        """Whether these are the next ones of it, which are taken then."""
        if (first, total) != (self._filled, len(self.rows)):
            return False
        self.rows[first : first + len(rows)] = rows
        self._filled += len(rows)
        return True


class EncodedPictures:
    """Reads each picture once, and forgets those used least recently, but never the last one.

    Rows that are still coming count as well, and are given up first.
    """

    def __init__(self, tower: Tower | None) -> None:
        """Without a tower, no picture can be read."""
        self._tower = tower
        self._limit = 0 if tower is None else kept_picture_bytes(tower.spec)
        self._rows: OrderedDict[str, Tensor] = OrderedDict()
        self._coming: OrderedDict[str, _Coming] = OrderedDict()  # of which not all rows have come

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
        less, by = torch.tensor(mean), torch.tensor(deviation)
        rows = self._tower(pixels, lambda some: some.float().div_(255).sub_(less).div_(by))
        self._keep(picture, rows)

    def of(self, picture: str) -> Tensor:
        """All rows of a picture that was read: (rows, numbers), f32, on the CPU."""
        return self._rows[picture]

    def take(self, picture: str, rows: Tensor, *, first: int, total: int) -> None:
        """Take rows that another tower has made, in their order. They are here when all have come.

        Those that are not the next ones are left: their picture is then asked for again.

        Raises:
            InvalidStepError: they are not of this model.
        """
        if self._tower is None:
            raise InvalidStepError(
                "Rows of a picture came, and this part of the model has no use for any."
            )
        spec = self._tower.spec
        count, numbers = rows.shape
        if picture in self._rows:
            self._rows.move_to_end(picture)
            return
        if not first < first + count <= total <= spec.rows_of_picture or numbers != spec.row:
            raise InvalidStepError(
                f"{count} rows of {numbers} numbers came from {first} on, of a picture of {total}."
            )
        if first == 0:
            self._coming.pop(picture, None)
            self._make_room(total * numbers * rows.element_size())
            self._coming[picture] = _Coming(torch.empty(total, numbers))
        coming = self._coming.get(picture)
        if coming is not None and coming.take(rows, first, total) and first + count == total:
            del self._coming[picture]
            self._keep(picture, coming.rows)

    def _keep(self, picture: str, rows: Tensor) -> None:
        self._make_room(rows.nbytes)
        self._rows[picture] = rows

    def _make_room(self, nbytes: int) -> None:
        """Forget what is oldest until there is room for so many bytes, if that is possible."""
        for some in (self._coming, self._rows):
            while some and self._nbytes + nbytes > self._limit:
                some.popitem(last=False)

    @property
    def _nbytes(self) -> int:
        both = (*self._rows.values(), *(coming.rows for coming in self._coming.values()))
        return sum(rows.nbytes for rows in both)

    def has(self, some: PictureRows) -> bool:
        """Whether these rows are here."""
        rows = self._rows.get(some.picture)
        return rows is not None and some.first + some.rows <= len(rows)

    def rows(self, some: PictureRows) -> Tensor:
        """These rows, (n, out · (1 + deep layers)), f32, which must be here."""
        self._rows.move_to_end(some.picture)
        return self._rows[some.picture][some.first :][: some.rows]
