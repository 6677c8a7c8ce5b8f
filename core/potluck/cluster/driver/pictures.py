"""The pictures of a prompt: which of its tokens are rows of them, and what steps say of these.

In a conversation's list of tokens, a row of a picture has an id of its own, beyond every vocabulary, which follows from
the picture's content. So lists are equal where text and pictures are, and prefixes, copies, and what is on the disk are
found as those of text. What is sent to stages has the model's own token in its place.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from potluck.cluster.driver.model_text import Picture, Rows
from potluck.errors import EngineError
from potluck.model.vision.spec import TowerSpec
from potluck.wire.activation_messages import PictureRows, StepPictures

ROW_IDS = 1 << 30  # the first id of a row; no vocabulary is so large

_Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Placed:
    picture: Picture
    tokens: list[int]  # positions of its rows


class Pictures:
    """Those of a prompt without any; `PromptPictures` has those of others."""

    __slots__ = ()

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens of the prompt, with the ids of rows; empty: they are as they were."""
        return ()

    def plain(self, tokens: list[int]) -> list[int]:
        """These tokens as the model knows them."""
        return tokens

    def of_step(self, begin: int, end: int) -> StepPictures | None:
        """What a step of the tokens from `begin` to `end` says of pictures; None: nothing."""
        return None

    def of_token(self, position: int) -> StepPictures | None:
        """What the step of a token of the answer says."""
        return None

    def unshown(self, begin: int, end: int) -> Iterator[tuple[int, Picture]]:
        """The pictures with rows in a step whose pixels were not sent, with the position of their first row."""
        return iter(())

    def to_show(self, begin: int, end: int) -> Sequence[Picture]:
        """The pictures that `unshown` is about to give, of which no rows are here."""
        return ()

    def keep_rows(self, name: str, rows: Sequence[Rows]) -> None:
        """Keep the rows of a picture that another computer has read until they are sent."""

    def take_rows(self, name: str) -> Sequence[Rows]:
        """The rows of a picture that are to be sent in place of its pixels; empty: there are none."""
        return ()

    def forget_shown(self) -> None:
        """Have all pixels sent again when they are needed: the stages may not have them, or are others."""

    def whole(self, begin: int, end: int) -> int:
        """Where a step ends that begins there and was to end at `end`, so that it cuts no picture whose rows see ahead."""
        return end


NO_PICTURES = Pictures()


@dataclass(slots=True, eq=False)
class PromptPictures(Pictures):
    """The pictures of one prompt."""

    _tokens: list[int]
    _token: int
    _tower: TowerSpec
    _placed: list[_Placed]
    _rows: _Integers  # for each token the number of its row in the picture; -1: it is text
    _places: _Integers  # rope's positions (3, T)
    _shown: set[str] = field(default_factory=set[str])
    _read: dict[str, Sequence[Rows]] = field(default_factory=dict[str, Sequence[Rows]])

    @classmethod
    def of(
        cls, ids: Sequence[int], pictures: Sequence[Picture], token: int, tower: TowerSpec
    ) -> "PromptPictures":
        """Find the rows in a prompt.

        Raises:
            EngineError: it has not as many of these tokens as the pictures have rows.
        """
        tokens, rows = list(ids), np.full(len(ids), -1, dtype=np.int32)
        seen = iter([position for position, each in enumerate(ids) if each == token])
        placed: list[_Placed] = []
        for picture in pictures:
            count = len(picture.shown)
            positions = [next(seen, -1) for _ in range(count)]
            if -1 in positions:
                raise EngineError("A prompt has fewer places for pictures than these have rows.")
            rows[positions] = picture.shown
            for position, row in zip(positions, _row_ids(picture.name, count), strict=True):
                tokens[position] = row
            placed.append(_Placed(picture=picture, tokens=positions))
        places = _rope_places(len(ids), placed, has_axes=bool(tower.axes))
        return cls(tokens, token, tower, placed, rows, places)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def plain(self, tokens: list[int]) -> list[int]:
        return [token if token < ROW_IDS else self._token for token in tokens]

    def of_step(self, begin: int, end: int) -> StepPictures:
        spans = tuple(self._spans(begin, end))
        if not self._tower.axes:
            return StepPictures(rows=spans)
        if not spans:
            return StepPictures(lag=self.lag(begin))
        places = self._places[:, begin:end]
        more = end - begin - places.shape[1]
        if more > 0:  # tokens of the answer, in one chunk with them
            after = np.arange(end - more, end, dtype=np.int32) - self.lag(end - more)
            places = np.concatenate([places, np.tile(after, (3, 1))], 1)
        return StepPictures(rows=spans, places=places.astype("<i4").tobytes())

    def of_token(self, position: int) -> StepPictures | None:
        lag = self.lag(position)
        return StepPictures(lag=lag) if lag else None

    def lag(self, position: int) -> int:
        """By how much rope's position of a token of text is less than its own."""
        if not self._tower.axes:
            return 0
        last = min(position, self._places.shape[1] - 1)
        if self._rows[last] >= 0:  # the prompt ends with a picture
            return last - int(self._places[:, last].max())
        return last - int(self._places[0, last])

    def unshown(self, begin: int, end: int) -> Iterator[tuple[int, Picture]]:
        for each in self._unshown(begin, end):
            self._shown.add(each.picture.name)
            yield each.tokens[0], each.picture

    def _unshown(self, begin: int, end: int) -> Iterator[_Placed]:
        for each in self._placed:
            tokens = each.tokens
            if tokens[0] < end and tokens[-1] >= begin and each.picture.name not in self._shown:
                yield each

    def to_show(self, begin: int, end: int) -> Sequence[Picture]:
        pictures = {each.picture.name: each.picture for each in self._unshown(begin, end)}
        return [picture for name, picture in pictures.items() if name not in self._read]

    def keep_rows(self, name: str, rows: Sequence[Rows]) -> None:
        self._read[name] = rows

    def take_rows(self, name: str) -> Sequence[Rows]:
        return self._read.pop(name, ())

    def forget_shown(self) -> None:
        self._shown.clear()

    def whole(self, begin: int, end: int) -> int:
        if not self._tower.facts.sees_ahead:
            return end
        for each in self._placed:
            first, last = each.tokens[0], each.tokens[-1] + 1
            if first < end < last:
                return first if first > begin else last
        return end

    def _spans(self, begin: int, end: int) -> Iterator[PictureRows]:
        for each in self._placed:
            inside = [position for position in each.tokens if begin <= position < end]
            if not inside:
                continue
            rows = self._rows[inside].tolist()
            both = enumerate(zip(pairwise(inside), pairwise(rows), strict=True), 1)
            cuts = [i for i, ((a, b), (row, after)) in both if (b, after) != (a + 1, row + 1)]
            for first, last in pairwise([0, *cuts, len(inside)]):
                position = inside[first]
                yield PictureRows(
                    picture=each.picture.name,
                    first=rows[first],
                    begin=position - begin,
                    rows=last - first,
                )


def _row_ids(name: str, count: int) -> list[int]:
    """An id for each row of a picture, by its content."""
    data = hashlib.shake_256(name.encode()).digest(4 * count)
    return (np.frombuffer(data, "<u4") % ROW_IDS + ROW_IDS).tolist()


def _rope_places(tokens: int, placed: Sequence[_Placed], *, has_axes: bool) -> _Integers:
    """Rope's positions of all tokens (3, T): a picture takes as many as its longer side has cells."""
    places = np.tile(np.arange(tokens, dtype=np.int32), (3, 1))
    if not has_axes:
        return places
    for each in placed:
        rows, columns = each.picture.rows, each.picture.columns
        first, end = each.tokens[0], each.tokens[-1] + 1
        start = int(places[0, first])
        cells = np.arange(rows * columns, dtype=np.int32)
        places[:, each.tokens] = start
        places[1, each.tokens] += cells // columns
        places[2, each.tokens] += cells % columns
        places[:, end:] -= end - first - max(rows, columns)
    return places
