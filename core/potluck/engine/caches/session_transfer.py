"""A session's cache on its way from a stage that reads its prompt to one that answers, layer by layer.

What is sent is what the cache holds, in the cache's own numbers. Rows of all positions go as soon as they are
computed; those of windows, and states, once the last token is. A cache that several layers have goes once, as that of
one of them. Ranks of a group send the heads that they have, or get those that they are to have, so that a stage may get a layer
of several others. The receiver writes rows behind the tokens that it
has. Windows and states would replace what these tokens left, so they wait in memory of their own. Nothing counts
before all is there: what breaks leaves the session as it was.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from potluck.engine.caches.coming_rows import Coming
from potluck.engine.caches.moved_parts import MovedPart, PartKey
from potluck.engine.caches.session_cache import SessionCache
from potluck.errors import InvalidStepError, OutOfMemoryError, format_bytes
from potluck.model.cache_shares import Lanes
from potluck.model.caches import MOST_MOVED_BYTES
from potluck.wire.activation_messages import Dtype, TensorHeader

_DTYPES: dict[Dtype, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in _DTYPES.items()}


class Piece(NamedTuple):
    """Some rows of some heads of a layer, (2, heads, rows, numbers); of a state some of its values, (1, 1, 1, values)."""

    layer: int  # the model's number of it
    part: int  # of the layer's cache
    lane: int  # number of the first head, or of the first value, in the whole layer
    first: int  # position of the first row, or number of the first pool; of a state 0
    tensor: TensorHeader
    data: memoryview


class RowSender:
    """Reads the rows of a session's layers from `begin` to `end`, as they are computed.

    Args:
        cache: of the session.
        parts: of its layers.
        given: the lanes of each layer that are sent.
        begin, end: the positions of the first token, and after the last one.
    """

    def __init__(
        self,
        cache: SessionCache,
        parts: Mapping[PartKey, MovedPart],
        given: Callable[[int], Lanes],
        begin: int,
        end: int,
    ) -> None:
        self._cache, self._end = cache, end
        self._parts = {key: part for part, key in _once(parts).items()}
        # What is to be read next of each run of lanes; None: it waits for the last token.
        self._next = {
            (key, run): part.units(begin) if part.is_streamed else None
            for key, part in self._parts.items()
            if not part.is_streamed or part.units(begin) < part.units(end)
            for run in part.chosen(given(key[0])[key[1]])
        }
        self._furthest = 0  # position up to which rows were read
        self._changes: int | None = None  # of the cache, when the last token was computed

    @property
    def is_done(self) -> bool:
        """Whether everything was read."""
        return not self._next

    def next(self) -> Piece | None:
        """The next rows; None: there are none now.

        Raises:
            InvalidStepError: the session lost tokens that were to be sent, or went on behind them.
        """
        self._check()
        computed = self._cache.length
        for (key, run), following in list(self._next.items()):
            part = self._parts[key]
            if not part.is_streamed and computed < self._end:
                continue
            first = part.begin if following is None else following
            stop = min(first + part.at_once(run), part.units(computed))
            if first < stop:
                self._next[key, run] = stop
                if stop == part.units(self._end):
                    del self._next[key, run]
                if part.is_streamed:
                    self._furthest = max(self._furthest, part.tokens(stop))
                return _piece(key, run.whole, first, part.read(run, first, stop))
        return None

    def _check(self) -> None:
        cache = self._cache
        if self._changes is None and cache.length == self._end:
            self._changes = cache.changes
        is_other = self._changes is not None and cache.changes != self._changes
        if is_other or not self._furthest <= cache.length <= self._end:
            raise InvalidStepError("The conversation has changed while its cache was sent.")


class RowReceiver:
    """Writes rows of other stages into a session's cache that has room for them, and then counts them."""

    def __init__(
        self, cache: SessionCache, parts: Mapping[PartKey, MovedPart], begin: int, end: int
    ) -> None:
        self._cache, self._parts, self.begin, self.end = cache, parts, begin, end
        self._changes = cache.changes
        # Under which key each part comes. Stages that are cut elsewhere may all send one that layers share: the first counts.
        self._keys: dict[MovedPart, PartKey] = {}
        # Windows and states wait for the last piece apart. A session without tokens has nothing that they could replace.
        self._coming = {part: Coming(part, begin, end) for part in _once(parts)}
        self._missing = {part for part, coming in self._coming.items() if not coming.is_whole}

    @property
    def is_whole(self) -> bool:
        """Whether everything is here."""
        return not self._missing

    def write(self, piece: Piece) -> None:
        """Write a piece. Those of a head come in their order; where another stage sends the same, they are dropped.

        Raises:
            InvalidStepError: they are not the rows that come next, or the session has changed meanwhile.
        """
        self._check()
        key = piece.layer, piece.part
        part = self._parts.get(key)
        if part is None:
            raise InvalidStepError(
                f"Rows of layer {piece.layer} came, which this stage does not have."
            )
        if self._keys.setdefault(part, key) != key:
            return
        coming = self._coming[part]
        rows = _tensor(piece.tensor, piece.data, part.memory)
        coming.write(piece.layer, piece.lane, piece.first, rows)
        if coming.is_whole:
            self._missing.discard(part)

    def finish(self) -> None:
        """Count the tokens as cached: the session goes on behind them.

        Raises:
            InvalidStepError: a row is missing, or the session has changed meanwhile.
        """
        self._check()
        for key, part in self._parts.items():
            if part in self._missing or not self._coming[part].has_enough:
                raise InvalidStepError(f"Not all rows of layer {key[0]} came.")
        for coming in self._coming.values():
            coming.hold()
        self._cache.extend(self.end)

    def _check(self) -> None:
        if self._cache.changes != self._changes:
            raise InvalidStepError("The conversation has changed while its cache was on its way.")


def beyond_one_transfer(nbytes: int) -> OutOfMemoryError:
    """The error of a cache that is larger than what is moved for one prompt."""
    return OutOfMemoryError(
        f"The cache of this prompt takes {format_bytes(nbytes)}, and at most"
        f" {format_bytes(MOST_MOVED_BYTES)} are moved to another computer.",
        needed=nbytes,
        available=MOST_MOVED_BYTES,
    )


# --- rows


def _once(parts: Mapping[PartKey, MovedPart]) -> dict[MovedPart, PartKey]:
    """Each part once, and the first key of it."""
    found: dict[MovedPart, PartKey] = {}
    for key, part in parts.items():
        found.setdefault(part, key)
    return found


def _piece(key: PartKey, lane: int, first: int, rows: Tensor) -> Piece:
    rows = rows.detach().cpu().contiguous()
    header = TensorHeader(dtype=_NAMES[rows.dtype], shape=tuple(rows.shape))
    # Viewed as bytes first, since numpy has no bfloat16.
    return Piece(*key, lane, first, header, rows.view(-1).view(torch.uint8).numpy().data)


def _tensor(header: TensorHeader, payload: memoryview, like: Tensor) -> Tensor:
    dtype = _DTYPES.get(header.dtype)
    is_taken = dtype == like.dtype or (
        dtype is not None and dtype.is_floating_point and like.is_floating_point()
    )
    if dtype is None or not is_taken or len(header.shape) != 4 or not payload.nbytes:
        raise InvalidStepError(
            f"Rows came as {header.dtype} {list(header.shape)}, and are cached in another form here."
        )
    data = memoryview(bytearray(payload)) if payload.readonly else payload
    return torch.frombuffer(data, dtype=dtype).view(header.shape)
