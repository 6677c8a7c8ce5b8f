"""Ranks of a group as threads of one process, with sums that meet at a barrier."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

import torch
from cut_tensors import cut
from tiny_models import CONTEXT, CPU, Reference, Sizes
from torch import Tensor

from potluck.engine.loading.reading import StoredTensor
from potluck.engine.loading.weights import load_weights
from potluck.engine.rank_sums.ranks import Exchange
from potluck.engine.stage import Stage
from potluck.errors import RankLostError
from potluck.ids import SessionId
from potluck.model.cache_shares import CacheShares
from potluck.model.schemes import Cache, Scheme
from potluck.model.shares import Share

T = TypeVar("T")
_PATIENCE_S = 20.0


class Meeting:
    """Where the ranks of a group meet."""

    def __init__(self, world: int) -> None:
        self.world, self.sums = world, 0
        self._barrier = threading.Barrier(world, timeout=_PATIENCE_S)
        self._brought: list[Tensor] = [torch.empty(0)] * world

    def exchanges(self) -> "list[FakeExchange]":
        return [FakeExchange(self, rank) for rank in range(self.world)]

    def sum(self, rank: int, rows: Tensor) -> None:
        """Add in the order of the ranks; each rank does it for itself."""
        self._brought[rank] = rows
        try:
            self._barrier.wait()
            total = self._brought[0].clone()
            for other in self._brought[1:]:
                total += other
            self.sums += rank == 0
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RankLostError("Another rank did not take part.") from None
        rows.copy_(total)

    def abort(self) -> None:
        self._barrier.abort()


@dataclass(frozen=True, slots=True)
class FakeExchange:
    """An `Exchange` between threads."""

    _meeting: Meeting
    rank: int

    @property
    def native(self) -> None:
        return None

    @property
    def world(self) -> int:
        return self._meeting.world

    def sum(self, rows: Tensor) -> None:
        assert rows.dtype == torch.float32
        assert rows.is_contiguous()
        self._meeting.sum(self.rank, rows)

    def sum_memory(self, numbers: memoryview) -> None:
        self._meeting.sum(self.rank, torch.frombuffer(numbers, dtype=torch.float32))

    def abort(self) -> None:
        self._meeting.abort()


class RankedStage:
    """The stages of all ranks of a group, as if they were one."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        self._threads = ThreadPoolExecutor(len(stages))

    def open(self, session: SessionId, **arguments: Any) -> None:
        for stage in self.stages:
            stage.open(session, **arguments)

    def trim(self, session: SessionId, position: int, *, epoch: int) -> None:
        for stage in self.stages:
            stage.trim(session, position, epoch=epoch)

    def position(self, session: SessionId) -> int:
        (position,) = {stage.position(session) for stage in self.stages}
        return position

    def forward(self, session: SessionId, inputs: Tensor, **arguments: Any) -> Any:
        """All ranks compute at the same time, and all have the same bits."""
        outputs = self.each(lambda stage: stage.forward(session, inputs, **arguments))
        hidden = [output.hidden.tensor for output in outputs if output.hidden is not None]
        for other in hidden[1:]:
            assert torch.equal(other, hidden[0])
        return outputs[0]

    def each(self, work: Callable[[Stage], T]) -> list[T]:
        """What each rank gives, all of which work at the same time."""
        return list(self._threads.map(work, self.stages))


@dataclass(frozen=True, slots=True)
class RankedReference(Reference):
    """A model whose stages are groups of ranks with these parts."""

    parts: tuple[int, ...] = (1, 1)
    is_cut: bool = False  # each rank has its slices alone

    @classmethod
    def of(
        cls, reference: Reference, parts: tuple[int, ...], *, is_cut: bool = False
    ) -> "RankedReference":
        return cls(reference.model, reference.config, reference.tensors, parts, is_cut)

    def _stored(self, share: Share, scheme: Scheme) -> tuple[StoredTensor, ...]:
        return cut(self.tensors, self.config, share, scheme) if self.is_cut else self.tensors

    def stage(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        embedding: bool | None = None,
        head: bool | None = None,
        scheme: Scheme = "f32",
        cache: Cache = "full",
        device: torch.device = CPU,
        context: int = CONTEXT,
        cache_budget: int = 1 << 24,
        epoch: int = 1,
        **sizes: Unpack[Sizes],
    ) -> Any:
        """Load each rank's share of these layers."""
        last = self.config.num_layers if stop is None else stop
        stages: list[Stage] = []
        exchanges: list[Exchange] = [*Meeting(len(self.parts)).exchanges()]
        for exchange in exchanges:
            share = Share(rank=exchange.rank, parts=self.parts)
            weights = load_weights(
                self.config,
                range(start, last),
                embedding=start == 0 if embedding is None else embedding,
                head=last == self.config.num_layers if head is None else head,
                tensors=self._stored(share, scheme),
                scheme=scheme,
                device=device,
                cache=cache,
                share=share,
            )
            stages.append(
                Stage(
                    weights,
                    context=context,
                    cache_budget=cache_budget,
                    epoch=epoch,
                    exchange=exchange,
                    shares=CacheShares(config=self.config, scheme=scheme, share=weights.share),
                    **sizes,
                )
            )
        return stages[0] if start == last else RankedStage(stages)
