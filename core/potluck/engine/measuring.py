"""Measure a loaded stage: what a bench compares its tokens with.

Three things are timed: one token through the layers, the head, and one pass that only reads the
weights of both, as fast as memory allows. No token can be faster than this pass, and than reading what it
needs of the caches at the same rate. A round times each
once, and rounds alternate with real tokens, so that other load on the computer slows down both
alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.new_cache import new_cache
from potluck.engine.device import synchronize
from potluck.engine.kernels import ReferenceKernels, best_kernels
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.choosing import some_choice
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.rotary import Rotaries
from potluck.engine.memory import out_of_memory
from potluck.engine.sampling.head import StageHead
from potluck.engine.sampling.sampler import Sampler
from potluck.engine.stage import Stage
from potluck.model.caches import CacheSpec
from potluck.wire.activation_messages import Sampling
from potluck.wire.measuring_messages import StageTimes

_ENOUGH = 1 << 32  # bytes read in a pass; experts may have far more than a token reads
_ON_A_GPU = (
    1 << 28
)  # bytes that a GPU reads in a call: with as few as a matrix has, it does not reach its rate
_PIECE = 1 << 12  # bytes: threads divide memory by whole pages
_MS = 1000.0
_Read = Callable[[Tensor], object]
_TICK = 1e-9  # seconds; the least time that a measurement gives, so that no rate divides by zero


class StageMeter:
    """Times one token in a stage, at one position, with caches of its own.

    Use it on the thread that computes.
    """

    @torch.inference_mode()
    def __init__(self, stage: Stage, position: int, *, enough: int = _ENOUGH) -> None:
        """Prepare everything; `enough` is how many bytes a pass over the weights reads at most.

        Raises:
            OutOfMemoryError: there is no room for a cache of so many tokens beside the sessions'.
        """
        weights = stage.weights
        config = weights.config
        self.position = position
        self._stage, self._device = stage, weights.device
        self._sampler = Sampler()
        self._matrices = [one for block in weights.blocks for one in _matrices(block)]
        if weights.lm_head is not None:
            self._matrices.append((weights.lm_head, 1.0))
        with out_of_memory("measure this stage", self._device):
            owners = stage.cache_owners
            made = {owner: self._new_cache(stage.caches[owner]) for owner in set(owners)}
            self._caches = [made[owner] for owner in owners]
            rotaries = Rotaries(config.ropes, stage.context, weights.dtype, self._device)
            ids = torch.zeros(1, dtype=torch.int32)
            self._step = Step(position, 1, rotaries.at(position + 1), self._device, ids)
            if weights.follows is not None:
                self._step.choice = some_choice(weights.follows, position, 1, self._device)
            self._hidden = torch.randn(1, config.width).to(self._device, weights.dtype)
        memory = [part for linear, _ in self._matrices for part in linear.memory]
        self._read = _Reader(_first(memory, enough), self._device, torch.get_num_threads())
        self.round()  # compiles, captures and allocates what later tokens use again

    def _new_cache(self, spec: CacheSpec) -> LayerCache:
        """A layer's cache with as many rows as it has at the position."""
        cache = new_cache(spec, self._stage.weights.cache_dtype, self._device)
        cache.resize(spec.rows(self.position + 1), 0)
        cache.both.zero_()
        cache.held = spec.advance(cache.held, self.position, 1)
        return cache

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one pass reads."""
        return self._read.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that one token reads: with experts, of as many as it goes through."""
        return round(
            sum(share * sum(m.nbytes for m in linear.memory) for linear, share in self._matrices)
        )

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches that a token at the position reads, by their specifications."""
        return sum(spec.read_bytes(self.position + 1) for spec in self._stage.caches)

    @torch.inference_mode()
    def round(self) -> StageTimes:
        """Time each once, one after the other."""
        read_bytes_per_s = self._read()
        layers_s, head = self._time(self._run_layers), self._stage.head
        return StageTimes(
            weight_bytes=self.weight_bytes,
            read_bytes_per_s=read_bytes_per_s,
            layers_ms=_MS * max(layers_s, _TICK),
            head_ms=0.0 if head is None else _MS * self._time(lambda: self._choose(head)),
            cache_bytes=self.cache_bytes,
        )

    def _time(self, call: Callable[[], object]) -> float:
        """Seconds that the call takes."""
        synchronize(self._device)
        start = time.perf_counter()
        call()
        synchronize(self._device)
        return time.perf_counter() - start

    def _run_layers(self) -> None:
        x = self._hidden
        for run in self._stage.weights.runs:
            x = run(x, self._caches, self._step)

    def _choose(self, head: StageHead) -> None:
        logits, _ = head.next_logits(self._hidden)
        self._sampler.choose(logits, Sampling(), position=self.position, history=())


def _matrices(block: DecoderLayer) -> Iterator[tuple[Linear, float]]:
    """The matrices of a layer, and which share of their bytes a token reads."""
    yield from ((matrix, 1.0) for matrix in (*block.around, *block.mixer_matrices))
    if block.mlp is None:
        return
    mlp, shares = block.mlp, list[tuple[Mlp, float]]()
    if isinstance(mlp, ParallelMoE):
        mlp, shares = mlp.moe, [(mlp.dense, 1.0)]
    if not isinstance(mlp, MoE):
        shares.append((mlp, 1.0))
    else:
        share = mlp.router.routing.per_token / len(mlp.experts)
        shares += [(expert, share) for expert in mlp.experts]
        shares += [] if mlp.shared is None else [(mlp.shared, 1.0)]
        yield from ((matrix, 1.0) for matrix in mlp.narrow or ())
    for one, share in shares:
        yield one.gate_up, share
        yield one.down, share


def _first(memory: Sequence[Tensor], enough: int) -> list[Tensor]:
    """The first of these matrices, enough of them to measure how fast all are read."""
    before = accumulate((part.nbytes for part in memory), initial=0)
    return [part for part, nbytes in zip(memory, before, strict=False) if nbytes < enough]


class _Reader:
    """One pass over memory: as many threads as compute, each with a part of every matrix. A GPU reads memory of the same kind."""

    def __init__(self, memory: Sequence[Tensor], device: torch.device, threads: int) -> None:
        self._device = device
        if device.type == "cpu":
            shares = [_share(memory, number, threads) for number in range(threads)]
            ways: list[_Read] = _ways_to_read()
            self._shares = shares
            self._once = partial(self._read_share, shares[0])
            self._pool = ThreadPoolExecutor(threads, "read") if threads > 1 else None
        else:
            nbytes = min(_ON_A_GPU, max(one.nbytes for one in memory) * len(memory))
            whole = [torch.zeros(nbytes, dtype=torch.uint8, device=device)]
            ways, self._shares = [_add_up], [whole]
            self._pool = None
            self._once = partial(self._read_share, whole)
        self.nbytes = sum(part.nbytes for share in self._shares for part in share)
        self._read = ways[0]
        if (
            len(ways) > 1
        ):  # each twice: the first pass may find pages that were not used for a while
            self._read = max(ways * 2, key=self._rate)

    def _rate(self, way: _Read) -> float:
        self._read = way
        return self()

    def __call__(self) -> float:
        """Read everything once; gives bytes per second."""
        synchronize(self._device)
        start = time.perf_counter()
        if self._pool is None:
            self._once()
        else:
            list(self._pool.map(self._read_share, self._shares))
        synchronize(self._device)
        return self.nbytes / max(time.perf_counter() - start, _TICK)

    def _read_share(self, share: Sequence[Tensor]) -> None:
        for part in share:
            self._read(part)


def _share(memory: Sequence[Tensor], number: int, of: int) -> list[Tensor]:
    """The bytes of each matrix that one of several threads reads."""
    parts: list[Tensor] = []
    for whole in memory:
        flat = whole.view(-1).view(torch.uint8)
        step = -(-len(flat) // of // _PIECE) * _PIECE
        parts.append(flat[number * step : (number + 1) * step])
    return [part for part in parts if len(part)]


def _ways_to_read() -> list[_Read]:
    """Which of these is the fastest depends on the processor."""
    kernels = best_kernels()
    if isinstance(kernels, ReferenceKernels):
        return [_combine]
    from potluck.engine.kernels.called.generated import GeneratedKernels
    from potluck.engine.kernels.stream_kernel import READ_AHEAD

    assert isinstance(kernels, GeneratedKernels)
    return [partial(kernels.read, ahead=ahead) for ahead in READ_AHEAD]


def _combine(part: Tensor) -> object:
    """Read without llvmlite, by the operator of numpy that computes least with what it reads."""
    numbers = part.numpy()
    return np.bitwise_xor.reduce(numbers[: len(numbers) // 8 * 8].view(np.int64))


def _add_up(part: Tensor) -> object:
    """Read as f32, whatever it is: torch adds bytes at a twentieth of the speed (H100: 176 GB/s, and 2996)."""
    octets = part.view(-1).view(torch.uint8)
    return octets[: len(octets) // 4 * 4].view(torch.float32).sum()
