"""A session's cache on its way from a stage that reads its prompt to one that answers, layer by layer.

What is sent is what the cache holds, in the cache's own numbers. Rows of all positions go as soon as they are
computed; those of windows, and states, once the last token is. The receiver writes rows behind the tokens that it
has. Windows and states would replace what these tokens left, so they wait in memory of their own. Nothing counts
before all is there: what breaks leaves the session as it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.state_cache import StateCache
from potluck.errors import InvalidStepError, OutOfMemoryError, format_bytes
from potluck.model.caches import MOST_MOVED_BYTES, CacheSpec, FullCache, Held, RecurrentCache
from potluck.wire.activation_messages import Dtype, TensorHeader

PIECE = 1 << 20  # bytes of rows that go at once: a millisecond on the thread that computes

_DTYPES: dict[Dtype, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in _DTYPES.items()}


class Piece(NamedTuple):
    """Some rows of a layer, (2, heads, rows, numbers); of a state some of its values, (1, 1, 1, values)."""

    layer: int  # the model's number of it
    first: int  # position of the first row, or number of the first value
    tensor: TensorHeader
    data: memoryview


class MovedLayer(NamedTuple):
    """One layer of a cache that moves. What is moved of it is counted in positions, or in values of its state."""

    spec: CacheSpec
    cache: LayerCache

    @property
    def is_streamed(self) -> bool:
        """Whether rows stay as they are once their token is computed."""
        return isinstance(self.spec, FullCache)

    @property
    def is_state(self) -> bool:
        return isinstance(self.cache, StateCache)

    @property
    def begin(self) -> int:
        """Where what is held of all tokens begins."""
        return 0 if self.is_state else self.cache.first

    def end(self, tokens: int) -> int:
        """Where it ends, if so many tokens are cached."""
        return self.cache.both.shape[3] if self.is_state else tokens

    @property
    def at_once(self) -> int:
        """How much of it makes a piece."""
        unit = self.cache.both.itemsize if self.is_state else self.cache.both[:, :, :1].nbytes
        return max(1, PIECE // max(1, unit))

    def read(self, first: int, stop: int) -> Tensor:
        """A part; its rows may be shared with other sessions."""
        both, shared, begin = self.cache.both, self.cache.shared, self.begin
        if self.is_state:  # its checkpoints are not moved
            return both[:, :, :1, first:stop]
        own = both[:, :, max(first, begin) - begin : max(stop, begin) - begin]
        if shared is None or first >= begin:
            return own
        return torch.cat([shared[:, :, first : min(stop, begin)], own], 2)

    def place(self, memory: Tensor, first: int, stop: int, begin: int) -> Tensor:
        """A part in memory that is laid out as the cache's; rows begin at the position `begin`."""
        if self.is_state:
            return memory[:, :, :1, first:stop]
        return memory[:, :, first - begin : stop - begin]


def check_movable(specs: Iterable[CacheSpec]) -> None:
    """Refuse layers whose cache stays where it is computed.

    Raises:
        InvalidStepError: there are some.
    """
    if not all(spec.moves for spec in specs):
        raise InvalidStepError("The cache of this model is not moved to other computers.")


def bytes_moved(specs: Iterable[CacheSpec], begin: int, end: int) -> int:
    """Bytes that come for the tokens from `begin` to `end`. Windows and states come whole, whatever is there."""
    return sum(
        spec.row.nbytes * (end - begin if isinstance(spec, FullCache) else _rows_apart(spec, end))
        for spec in specs
    )


def bytes_apart(specs: Iterable[CacheSpec], begin: int, end: int) -> int:
    """Bytes that a `RowReceiver` takes beside the session's cache."""
    if not begin:
        return 0
    return sum(spec.row.nbytes * _rows_apart(spec, end) for spec in specs)


def _rows_apart(spec: CacheSpec, end: int) -> int:
    if isinstance(spec, FullCache):
        return 0
    return 1 if isinstance(spec, RecurrentCache) else spec.rows(end)


def moved_layers(
    cache: SessionCache, specs: Sequence[CacheSpec], numbers: Sequence[int]
) -> dict[int, MovedLayer]:
    """The layers of a cache by their numbers in the model, without those that cache nothing."""
    layers = zip(numbers, specs, cache.layers, strict=True)
    return {number: MovedLayer(spec, layer) for number, spec, layer in layers if spec.row.nbytes}


class RowSender:
    """Reads the rows of a session's layers from `begin` to `end`, as they are computed."""

    def __init__(
        self, cache: SessionCache, layers: Mapping[int, MovedLayer], begin: int, end: int
    ) -> None:
        self._cache, self._layers, self._end = cache, layers, end
        # What is to be read next of each layer; None: it waits for the last token.
        self._next = {n: begin if one.is_streamed else None for n, one in layers.items()}
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
        for number, following in list(self._next.items()):
            layer = self._layers[number]
            if not layer.is_streamed and computed < self._end:
                continue
            first = layer.begin if following is None else following
            stop = min(first + layer.at_once, layer.end(computed))
            if first < stop:
                self._next[number] = stop
                if stop == layer.end(self._end):
                    del self._next[number]
                if layer.is_streamed:
                    self._furthest = max(self._furthest, stop)
                return _piece(number, first, layer.read(first, stop))
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
        self, cache: SessionCache, layers: Mapping[int, MovedLayer], begin: int, end: int
    ) -> None:
        self._cache, self._layers, self.begin, self.end = cache, layers, begin, end
        self._changes = cache.changes
        self._next = {number: begin for number, layer in layers.items() if layer.is_streamed}
        self._first: dict[int, int] = {}  # of windows, the position of the first row
        # Of windows and states, where they wait for the last piece. A session without tokens has
        # nothing that they could replace.
        self._apart = {
            number: torch.empty_like(layer.cache.both[:, :, : _rows_apart(layer.spec, end)])
            for number, layer in layers.items()
            if begin and not layer.is_streamed
        }

    def write(self, number: int, first: int, tensor: TensorHeader, payload: memoryview) -> None:
        """Write a piece. Those of a layer come in their order.

        Raises:
            InvalidStepError: they are not the rows that come next, or the session has changed meanwhile.
        """
        self._check()
        layer = self._layers.get(number)
        if layer is None:
            raise InvalidStepError(f"Rows of layer {number} came, which this stage does not have.")
        rows = _tensor(tensor, payload, layer.cache.both)
        stop = first + rows.shape[3 if layer.is_state else 2]
        begin = layer.begin if layer.is_streamed else self._first.get(number, first)
        is_next = first == self._next.get(number, 0 if layer.is_state else first)
        if not is_next or stop > layer.end(self.end):
            raise InvalidStepError(f"Rows of layer {number} came that are not the next ones.")
        memory = self._apart.get(number, layer.cache.both)
        target = layer.place(memory, first, stop, begin)
        if target.shape != rows.shape:
            raise InvalidStepError(
                f"Layer {number} is cached as {list(target.shape)} here, and {list(rows.shape)} came."
            )
        if not layer.is_streamed:
            self._first[number] = begin
        target.copy_(rows)
        self._next[number] = stop

    def finish(self) -> None:
        """Count the tokens as cached: the session goes on behind them.

        Raises:
            InvalidStepError: a row is missing, or the session has changed meanwhile.
        """
        self._check()
        held = {number: self._held(number, layer) for number, layer in self._layers.items()}
        for number, layer in self._layers.items():
            if (apart := self._apart.pop(number, None)) is not None:
                layer.cache.both[:, :, : apart.shape[2]].copy_(apart)
            layer.cache.held = held[number]
            if layer.is_state:  # where an answer begins, there is a checkpoint
                layer.cache.advance(layer.spec.advance(held[number], self.end, 2), self.end)
        self._cache.extend(self.end)

    def _held(self, number: int, layer: MovedLayer) -> Held:
        """What a layer holds then."""
        if self._next.get(number) != layer.end(self.end):
            raise InvalidStepError(f"Not all rows of layer {number} came.")
        if layer.is_streamed:
            return layer.cache.held
        if layer.is_state:
            return (0,) * len(layer.cache.held)
        held = (self._first[number],)
        if layer.spec.trim(held, self.end) != self.end:
            raise InvalidStepError(f"Too few rows of layer {number} came.")
        return held

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


def _piece(number: int, first: int, rows: Tensor) -> Piece:
    rows = rows.detach().cpu().contiguous()
    header = TensorHeader(dtype=_NAMES[rows.dtype], shape=tuple(rows.shape))
    # Viewed as bytes first, since numpy has no bfloat16.
    return Piece(number, first, header, rows.view(-1).view(torch.uint8).numpy().data)


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
