"""A run of layers, or a head, as a CUDA graph: one call for a token instead of ten for each layer.

A graph belongs to one session's caches and to the number of their rows that it reads. When the
caches move or grow, or that number grows, a new graph is captured, which takes as long as a few
tokens. So a few graphs are kept, a graph that was just in use is not dropped for another, and a
token without a graph goes through the layers one by one. A failed capture is not tried again,
except after a while if it ran out of memory.
"""

import logging
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from potluck.engine.accelerator.graphs import Graphs, Replay
from potluck.engine.accelerator.static_step import (
    StaticInputs,
    clear_rest,
    prefix_length,
    static_forward,
    window_of,
)
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Attention, Step
from potluck.engine.layers.blocks import DecoderLayer, LayerRun, Run
from potluck.engine.layers.mlp import MoE
from potluck.engine.layers.parallel import ParallelMoE

logger = logging.getLogger(__name__)

_KEPT = 8  # graphs of a run, for sessions that take turns
_IN_USE = 64  # a graph that was replayed within so many tokens is not dropped
_PAUSE = 64  # tokens until the next try after memory ran out; a try takes as long as a few tokens


@dataclass(slots=True)
class _Captured:
    work: Replay
    # The caches of the first layer of each window: the caches of one kind grow from there on.
    memory: tuple[weakref.ref[Tensor], ...]
    lengths: Mapping[int | None, int]  # rows that attention reads, for each window
    firsts: tuple[int, ...]  # the first positions of these caches at the last replay
    used: int  # the number of the last token that it was replayed for
    next: int  # the position after that token

    @property
    def is_gone(self) -> bool:
        """Whether the memory of a cache was freed, because the cache was evicted or has grown."""
        return any(memory() is None for memory in self.memory)


class _Capturing:
    """Captures graphs. After a failure it knows when to try again."""

    def __init__(self, graphs: Graphs, what: str) -> None:
        self._graphs, self._what = graphs, what
        self._pause = 0.0  # tokens until the next try

    def is_due(self) -> bool:
        """Whether to try now. Call it once for each token that has no graph."""
        self._pause = max(0.0, self._pause - 1)
        return not self._pause

    def __call__(self, body: Callable[[], None]) -> Replay | None:
        try:
            return self._graphs.capture(body)
        except RuntimeError as error:
            self._pause = _PAUSE if isinstance(error, torch.OutOfMemoryError) else math.inf
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            logger.warning("capturing %s failed, no graph is used for it: %s", self._what, reason)
            return None


class GraphRun(Run):
    """Consecutive layers with attention. None of them may wait for the device, as some mixtures do."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer], graphs: Graphs) -> None:
        self._layers, self._blocks = slice(first, first + len(blocks)), tuple(blocks)
        self._plain = LayerRun(first, blocks)
        windows = [window_of(block) for block in blocks]
        backwards = windows[::-1]
        # For each window: the index of its first layer in this run, and the negative index of its last.
        self._ends = {
            window: (windows.index(window), -1 - backwards.index(window)) for window in windows
        }
        self._capture = _Capturing(graphs, f"{len(blocks)} layers")
        self._captured: list[_Captured] = []
        self._inputs: StaticInputs | None = None
        self._output = torch.empty(0)
        self._tokens = 0

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        self._tokens += 1
        own = caches[self._layers]
        captured = self._find(own, x, step)
        if captured is None:
            return self._plain(x, caches, step)
        # 0: the next token; 1: the same again, as in a bench. Else other steps wrote meanwhile.
        follows = 0 <= captured.next - step.position <= 1
        firsts = tuple(cache.first for cache in self._first_caches(own))
        if not (follows and captured.firsts == firsts):
            clear_rest(self._blocks, own, step.position, captured.lengths)
        self._load(own, x, step)
        captured.work.replay()
        captured.used, captured.next, captured.firsts = self._tokens, step.end, firsts
        return self._output.clone()

    def _find(self, caches: Sequence[LayerCache], x: Tensor, step: Step) -> _Captured | None:
        """The graph of these caches at this position, captured if there is none yet."""
        memory = [cache.both for cache in self._first_caches(caches)]
        # If growing ran out of memory, the last layers have shorter caches than the first ones.
        lengths = {
            window: prefix_length(row, caches[self._ends[window][1]].rows)
            for window, row in self._rows(caches, step).items()
        }
        for captured in self._captured:
            is_there = all(
                one() is other for one, other in zip(captured.memory, memory, strict=True)
            )
            if is_there and captured.lengths == lengths:
                return captured
        if not (self._capture.is_due() and self._make_room()):
            return None
        inputs, output = self._load(caches, x, step)
        clear_rest(self._blocks, caches, step.position, lengths)

        def body() -> None:
            output.copy_(static_forward(self._blocks, caches, inputs, lengths))

        work = self._capture(body)
        if work is None:
            return None
        firsts = tuple(cache.first for cache in self._first_caches(caches))
        references = tuple(map(weakref.ref, memory))
        captured = _Captured(work, references, lengths, firsts, self._tokens, step.position)
        self._captured.append(captured)
        return captured

    def _first_caches(self, caches: Sequence[LayerCache]) -> list[LayerCache]:
        return [caches[first] for first, _ in self._ends.values()]

    def _rows(self, caches: Sequence[LayerCache], step: Step) -> dict[int | None, int]:
        """The row of the token in the caches of each window."""
        return {
            window: step.position - caches[first].first for window, (first, _) in self._ends.items()
        }

    def _make_room(self) -> bool:
        """Drop graphs whose caches are gone, then the least recently used one, if it is idle."""
        self._captured = [one for one in self._captured if not one.is_gone]
        if len(self._captured) < _KEPT:
            return True
        oldest = min(self._captured, key=lambda one: one.used)
        if self._tokens - oldest.used <= _IN_USE:
            return False
        self._captured.remove(oldest)
        return True

    def _load(
        self, caches: Sequence[LayerCache], x: Tensor, step: Step
    ) -> tuple[StaticInputs, Tensor]:
        rows = self._rows(caches, step)
        if self._inputs is None:
            self._inputs, self._output = StaticInputs(x, step, rows), torch.empty_like(x)
        self._inputs.load(x, step, rows)
        return self._inputs, self._output


class GraphedHead:
    """The logits of one token in one call."""

    def __init__(self, graphs: Graphs) -> None:
        self._capture = _Capturing(graphs, "the head")
        self._work: Replay | None = None
        self._hidden = self._output = torch.empty(0)

    def __call__(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> Tensor:
        """(1, D) → (1, V), f32, as `logits` computes them; every call needs the same function."""
        if self._work is None and self._capture.is_due():
            self._work = self._capture(self._body(hidden, logits))
        if self._work is None:
            return logits(hidden)
        self._hidden.copy_(hidden)
        self._work.replay()
        return self._output.clone()

    def _body(self, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        own, output = hidden.clone(), torch.empty_like(logits(hidden))
        self._hidden, self._output = own, output

        def body() -> None:
            output.copy_(logits(own))

        return body


def graph_runs(blocks: Sequence[DecoderLayer], graphs: Graphs) -> tuple[Run, ...]:
    """Cut the layers into runs: graphs, and layers one by one where they cannot be captured."""
    runs: list[Run] = []
    first = 0
    for is_captured, group in groupby(blocks, _can_be_captured):
        some = list(group)
        runs.append(GraphRun(first, some, graphs) if is_captured else LayerRun(first, some))
        first += len(some)
    return tuple(runs)


def _can_be_captured(block: DecoderLayer) -> bool:
    spec, mixer, mlp = block.spec, block.mixer, block.mlp
    mixture = mlp.moe if isinstance(mlp, ParallelMoE) else mlp
    waits = isinstance(mixture, MoE) and mixture.waits
    waits |= spec.sums_mixer or spec.sums_feed_forward  # for the other ranks of a group
    has_streams = spec.streams is not None or spec.carried is not None
    is_plain = isinstance(mixer, Attention) and not (mixer.spec.in_chunks or mixer.spec.index)
    return is_plain and not waits and not has_streams
