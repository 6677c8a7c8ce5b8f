"""Measure a loaded stage part by part: what a bench holds its tokens against.

The parts of one token are timed alone, with everything prepared: all layers as they decode, their
products, their attention, the head; and one pass that reads the same weights and does nothing with them,
as fast as memory gives them: the floor. One round takes each once, so that rounds in turns with real
tokens see the same noise. What the layers take beside products and attention is the rest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.blocks import DecoderLayer
from potluck.engine.device import synchronize
from potluck.engine.kernels import PackedWeight, ReferenceKernels, best_kernels
from potluck.engine.kernels.layout import GROUP, ROWS
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.memory import out_of_memory
from potluck.engine.mlp import Experts, GatedMlp, PackedMlp
from potluck.engine.rotary import Rotary
from potluck.engine.sampler import choose
from potluck.engine.stage import Stage
from potluck.model.formats import INT8
from potluck.wire.measuring_messages import StageTimes
from potluck.wire.messages import (
    Sampling,
)

_ENOUGH = 1 << 32  # bytes read in a pass; a mixture of experts has more than a token ever reads
_LARGE = 1 << 22  # bytes; on a GPU, reading less than that is waiting for the call
_PIECE = 1 << 12  # bytes: threads share out whole pages
_MS = 1000.0
_TICK = 1e-9  # seconds; no clock divides by less

Call = Callable[[], object]


class StageMeter:
    """Times the parts of one token in a stage, at one position. Keeps caches of its own.

    To be used by the thread that computes.
    """

    @torch.inference_mode()
    def __init__(self, stage: Stage, position: int) -> None:
        """Prepare everything.

        Raises:
            OutOfMemoryError: there is no room for a cache of so many tokens beside the sessions'.
        """
        weights = stage.weights
        self.position = position
        self._stage, self._device = stage, weights.device
        self._parts = [
            (linear, share) for block in weights.blocks for linear, share in _linears(block)
        ]
        if weights.lm_head is not None:
            self._parts.append((weights.lm_head, 1.0))
        with out_of_memory("measure this stage", self._device):
            self._caches = self._make_caches(stage, position)
            self._step = Step(position, 1, self._rotaries(stage), self._device)
            self._hidden = self._random(weights.config.hidden_size)
            self._prepare_layers(weights.blocks)
        memory = [part for linear, _ in self._parts for part in linear.memory]
        self._read = _Reader(_enough(memory), self._device, torch.get_num_threads())
        self.round()  # what is compiled, captured or allocated once is not what a token takes

    @property
    def read_bytes(self) -> int:
        """Of one pass."""
        return self._read.nbytes

    @property
    def weight_bytes(self) -> int:
        """Of the matrices that one token reads, the head's among them: not all of the experts'."""
        return round(
            sum(share * sum(m.nbytes for m in linear.memory) for linear, share in self._parts)
        )

    @torch.inference_mode()
    def round(self) -> StageTimes:
        """Time each part once, one after the other."""
        read_bytes_per_s = self._read()
        has_head = self._stage.weights.lm_head is not None
        layers_s = self._time([self._run])
        products_s = max(0.0, self._time(self._products) - self._time(self._idle))
        attention_s = self._time(self._attention)
        head_s = self._time([self._choose]) if has_head else 0.0
        return StageTimes(
            weight_bytes=self.weight_bytes,
            read_bytes_per_s=read_bytes_per_s,
            layers_ms=_MS * max(layers_s, _TICK),
            products_ms=_MS * products_s,
            attention_ms=_MS * attention_s,
            head_ms=_MS * head_s,
        )

    def _time(self, calls: Sequence[Call]) -> float:
        """Seconds that these calls take, one after the other."""
        synchronize(self._device)
        start = time.perf_counter()
        for call in calls:
            call()
        synchronize(self._device)
        return time.perf_counter() - start

    def _run(self) -> None:
        x = self._hidden
        for run in self._stage.weights.runs:
            x = run(x, self._caches, self._step)

    def _choose(self) -> None:
        logits, _ = self._stage.next_logits(self._hidden)
        choose(logits, Sampling(), position=self.position, history=())

    def _random(self, *shape: int) -> Tensor:
        x = torch.randn(1, *shape)
        return x.to(self._device, self._stage.weights.dtype)

    def _make_caches(self, stage: Stage, position: int) -> list[LayerCache]:
        config, weights = stage.weights.config, stage.weights
        caches = [
            LayerCache(config.num_kv_heads, config.head_dim, weights.cache_dtype, self._device)
            for _ in weights.blocks
        ]
        for cache in caches:
            cache.resize(position + 1, 0)
            cache.both.zero_()
        return caches

    @staticmethod
    def _rotaries(stage: Stage) -> list[Rotary]:
        weights = stage.weights
        return [
            Rotary(rope, stage.context, weights.dtype, weights.device)
            for rope in weights.config.ropes.distinct
        ]

    def _products_of(self, block: DecoderLayer) -> list[Call]:
        """As many products as a token has in this layer, with inputs that are made."""
        config, attention, mlp = self._stage.weights.config, block.attention, block.mlp
        calls = [
            self._product(attention.qkv, config.hidden_size),
            self._product(attention.output, config.q_size),
        ]
        width: int = config.intermediate_size
        mlps: Sequence[object] = (mlp,)
        if isinstance(mlp, Experts):
            assert config.experts is not None
            width, mlps = config.experts.intermediate_size, mlp.experts[: mlp.per_token]
            x, router = self._random(config.hidden_size).float(), mlp.router
            calls.append(lambda: torch.nn.functional.linear(x, router))
        for one in mlps:
            gate_up, down = _matrices(one)
            calls.append(self._product(gate_up, config.hidden_size))
            calls.append(self._product(down, width))
        return calls

    def _product(self, linear: Linear, width: int) -> Call:
        x = self._random(width)
        if not isinstance(linear, PackedLinear):
            return lambda: linear(x)
        quantised = linear.kernels.quantise(x)
        return lambda: linear.multiply(quantised)

    def _prepare_layers(self, blocks: Sequence[DecoderLayer]) -> None:
        self._products = [call for block in blocks for call in self._products_of(block)]
        self._attention = [
            self._attention_of(block, cache)
            for block, cache in zip(blocks, self._caches, strict=True)
        ]
        self._idle: list[Call] = []
        if isinstance(best_kernels(), ReferenceKernels):
            return
        # Not before it is needed, nor where it does not load: it brings llvmlite.
        from potluck.engine.attention_alone import attention_call, generated_layers

        generated = generated_layers(self._stage.weights.runs)
        for layer, run in generated.items():
            queries, cache = torch.randn(run.heads.heads * run.heads.head_dim), self._caches[layer]
            call = attention_call(blocks[layer], run, queries, cache, self.position)
            self._attention[layer] = call
        self._idle = _calls_saved([blocks[layer] for layer in generated])

    def _attention_of(self, block: DecoderLayer, cache: LayerCache) -> Call:
        attention, step = block.attention, self._step
        q = self._random(attention.num_heads, attention.head_dim)
        return lambda: attention.attend(q, cache, step)


def _linears(block: DecoderLayer) -> Iterator[tuple[Linear, float]]:
    """The matrices of a layer, and which share of their bytes a token reads."""
    yield block.attention.qkv, 1.0
    yield block.attention.output, 1.0
    mlp = block.mlp
    experts = mlp.experts if isinstance(mlp, Experts) else (mlp,)
    share = mlp.per_token / len(experts) if isinstance(mlp, Experts) else 1.0
    for one in experts:
        gate_up, down = _matrices(one)
        yield gate_up, share
        yield down, share


def _matrices(mlp: object) -> tuple[Linear, Linear]:
    assert isinstance(mlp, GatedMlp | PackedMlp)
    return mlp.gate_up, mlp.down


def _calls_saved(blocks: Sequence[DecoderLayer]) -> list[Call]:
    """The smallest product as often as these generated layers save Python the call of one."""
    calls: list[Call] = []
    for block in blocks:
        product = _smallest_product(block.attention.qkv)
        mlps = block.mlp.per_token if isinstance(block.mlp, Experts) else 1
        calls += [product] * (2 + 2 * mlps)
    return calls


def _smallest_product(like: Linear) -> Call:
    if isinstance(like, FloatLinear):
        small = FloatLinear(like.weight.new_zeros((ROWS, GROUP)), None, like.products)
        row = like.weight.new_zeros((1, GROUP))
        return lambda: small(row)
    assert isinstance(like, PackedLinear)
    kernels = like.kernels
    weight, x = PackedWeight.empty(ROWS, GROUP, INT8), kernels.quantise(torch.zeros(1, GROUP))
    return lambda: kernels.multiply(weight, x)


def _enough(memory: Sequence[Tensor]) -> list[Tensor]:
    """The first of these matrices, as many as tell how fast all of them are read."""
    before = accumulate((part.nbytes for part in memory), initial=0)
    return [part for part, nbytes in zip(memory, before, strict=False) if nbytes < _ENOUGH]


class _Reader:
    """One pass over memory: as many threads as compute, each with a part of every matrix."""

    def __init__(self, memory: Sequence[Tensor], device: torch.device, threads: int) -> None:
        self._device = device
        if device.type == "cpu":
            shares = [_share(memory, number, threads) for number in range(threads)]
            self._read, self._shares = _fastest_reading(), shares
            self._pool = ThreadPoolExecutor(threads, "read") if threads > 1 else None
        else:
            large = [one for one in memory if one.nbytes >= _LARGE] or list(memory)
            self._read, self._shares = _add_up, [large]
            self._pool = None
        self.nbytes = sum(part.nbytes for share in self._shares for part in share)

    def __call__(self) -> float:
        """Read everything once; bytes a second."""
        synchronize(self._device)
        start = time.perf_counter()
        if self._pool is None:
            self._read_share(self._shares[0])
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


def _fastest_reading() -> Callable[[Tensor], object]:
    kernels = best_kernels()
    if isinstance(kernels, ReferenceKernels):
        return _combine
    from potluck.engine.kernels.generated import GeneratedKernels

    assert isinstance(kernels, GeneratedKernels)
    return kernels.read


def _combine(part: Tensor) -> object:
    """Without llvmlite: of numpy's operators the one that does least with what it reads."""
    numbers = part.numpy()
    return np.bitwise_xor.reduce(numbers[: len(numbers) // 8 * 8].view(np.int64))


def _add_up(part: Tensor) -> object:
    return part.sum() if part.is_floating_point() else part.view(-1).view(torch.uint8).sum()
