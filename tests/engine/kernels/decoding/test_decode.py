"""A token through generated layers is what torch makes of it, whatever the family's layers are like."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from kernel_paths import BEST, every_path, on_path
from llvmlite import ir
from torch import Tensor
from torch_layers import EPSILON, make_angles, make_cache, make_heads, random_layer, run_layer

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.kernels.attending.attention import PANEL
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.decoding import layer_kernel
from potluck.engine.kernels.decoding.decode import Decoder
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import LayerWeights, layer_shape
from potluck.engine.kernels.library import Library
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.tensors import DTYPES, Angles
from potluck.engine.kernels.threads_kernel import JOB_BYTES, RUN, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import I64
from potluck.model.families.facts import (
    POST_NORMS,
    PRE_NORMS,
    SANDWICH_NORMS,
    ClampedSwiglu,
    LayerNorms,
)
from potluck.model.formats import BF16 as HALF
from potluck.model.formats import F16 as OTHER_HALF
from potluck.model.formats import F32 as FULL
from potluck.model.formats import INT4, INT4_OFFSET, PackedFormat, WeightFormat
from potluck.model.formats import INT8 as EIGHT
from potluck.model.routing import Routing

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8


@dataclass(frozen=True, kw_only=True)
class Case:
    """Layers of one shape that differ in what is data."""

    formats: Sequence[WeightFormat] = (INT4,) * 4
    dtype: torch.dtype = F32
    heads: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shape: Mapping[str, Any] = field(default_factory=dict[str, Any])
    norms: LayerNorms[str] = PRE_NORMS
    has_biases: bool = False
    windows: Sequence[int | None] = (None, None, None)
    ropes: Sequence[int | None] = (0, 0, 0)
    intermediate: int = 112
    moe: Routing | None = None

    @property
    def tolerance(self) -> float:
        """A rounding that falls to the other side in one layer is a step in the next one.

        Of 1/127 where inputs are quantised, of 2**-8 where hidden states, a cache or a wide input are bf16.
        """
        is_packed = any(isinstance(held, PackedFormat) for held in self.formats)
        return 0.02 if is_packed else 0.006

    def make(self, kernels: GeneratedKernels) -> tuple[list[LayerWeights], LayerShape]:
        heads = make_heads(4, 2, 24, 24, self.dtype, **self.heads)
        layers = [
            random_layer(
                kernels, heads, 80, self.intermediate, self.formats, norms=self.norms,
                has_biases=self.has_biases, window=window, rope=rope,
                moe=self.moe,
            )
            for window, rope in zip(self.windows, self.ropes, strict=True)
        ]  # fmt: skip
        return layers, layer_shape(layers[0], heads, epsilon=EPSILON, **self.shape)


EXPERTS = Routing(count=21, per_token=5, normalise=True)
CASES = {
    "llama": Case(dtype=BF16),
    "llama with biases, int8": Case(formats=(EIGHT,) * 4, has_biases=True),
    "llama, offsets": Case(formats=(INT4_OFFSET,) * 4),
    "llama, offsets in some": Case(
        formats=(EIGHT, INT4_OFFSET, INT4_OFFSET, EIGHT), has_biases=True
    ),
    "qwen 3, windows, mixed bits": Case(
        formats=(EIGHT, INT4, INT4, EIGHT),
        dtype=F16,
        heads={"qk_norm": "head"},
        windows=(None, 5, 5),
    ),
    "gemma 2": Case(
        dtype=F16,
        heads={"softcap": 2.0, "scale": 0.3},
        shape={"activation": "gelu_pytorch_tanh"},
        norms=SANDWICH_NORMS,
        windows=(5, None, 5),
    ),
    "gemma 3": Case(
        heads={"qk_norm": "head"},
        shape={"activation": "gelu_pytorch_tanh"},
        norms=SANDWICH_NORMS,
        windows=(5, 5, None),
        ropes=(1, 1, 0),
    ),
    "olmo 2": Case(dtype=INT8, heads={"qk_norm": "projection"}, norms=POST_NORMS),
    "smollm 3": Case(ropes=(0, None, 0), has_biases=True),
    "exaone 4": Case(
        heads={"qk_norm": "head"},
        norms=POST_NORMS,
        windows=(7, None, 7),
        ropes=(0, None, 0),
        has_biases=True,
    ),
    "granite": Case(dtype=INT8, heads={"scale": 0.21}, shape={"multiplier": 0.37}, has_biases=True),
    "qwen 2, 16 bits": Case(formats=(HALF,) * 4, dtype=BF16, has_biases=True, windows=(None, 5, 5)),
    "olmo 2, f16": Case(
        formats=(OTHER_HALF,) * 4,
        dtype=F16,
        heads={"qk_norm": "projection"},
        norms=POST_NORMS,
        shape={"activation": "gelu_pytorch_tanh"},
    ),
    "granite, some packed": Case(
        formats=(HALF, INT4, HALF, EIGHT), shape={"multiplier": 0.37}, has_biases=True
    ),
    "wide, 16 bits": Case(formats=(HALF,) * 4, intermediate=4128),
    "qwen 3 moe": Case(
        dtype=F16,
        heads={"qk_norm": "head"},
        formats=(EIGHT, INT4, INT4_OFFSET, EIGHT),
        moe=EXPERTS,
        intermediate=48,
    ),
    "gpt-oss": Case(
        dtype=BF16,
        heads={"has_sinks": True},
        formats=(EIGHT, EIGHT, INT4, INT4),
        moe=EXPERTS,
        has_biases=True,
        windows=(5, None, 5),
        shape={"activation": ClampedSwiglu(1.702, 2.0, has_pairs=True)},
        intermediate=48,
    ),
    "gpt-oss, f32, halves": Case(
        heads={"has_sinks": True},
        formats=(FULL,) * 4,
        moe=Routing(count=6, per_token=2, normalise=True),
        has_biases=True,
        shape={"activation": ClampedSwiglu(1.1, 7.0, has_pairs=False)},
        intermediate=42,
    ),
    "mixtral, 16 bits": Case(
        formats=(HALF,) * 4,
        moe=Routing(count=4, per_token=1, normalise=False),
        windows=(None, 5, 5),
    ),
}


# Compiling takes a third of a second each. What differs between paths has tests of its own, so that beside the
# best path, the others are tested with cases that have every piece of a layer between them.
THREADED = ("llama", "qwen 2, 16 bits", "qwen 3 moe")
ON_EVERY_PATH = ("gemma 2", "granite", "olmo 2, f16", *THREADED)


def angles_at(shape: LayerShape, position: int) -> list[Angles]:
    """Of two kinds of rope, of which one has factors of queries."""
    first = make_angles(shape.attention, position, slowest=0.01)
    return [first, make_angles(shape.attention, position, slowest=0.2, has_factors=True)]


@pytest.mark.parametrize(
    ("path", "case"),
    [
        on_path(path.name, path, case, case=name)
        for path in host_paths()
        for name, case in CASES.items()
        if path is BEST or name in ON_EVERY_PATH
    ],
)
def test_tokens_through_layers_are_those_of_torch(path: Path, case: Case) -> None:
    kernels = GeneratedKernels(path)
    layers, shape = case.make(kernels)
    caches = [make_cache(shape.attention, 32, case.dtype) for _ in layers]
    expected_caches = [cache.clone() for cache in caches]
    decoder = Decoder(kernels, layers, shape)

    for position in range(20):
        hidden = torch.randn(1, 80)
        angles = angles_at(shape, position)
        expected = hidden
        for layer, cache in zip(layers, expected_caches, strict=True):
            expected = run_layer(
                ReferenceKernels(), layer, shape, expected, cache, position, angles
            )
            if shape.rounds_to is not None and shape.qkv_format is not None:
                expected = expected.to(DTYPES[shape.qkv_format]).float()
        decoder(hidden, caches, position, angles)

        error = (hidden - expected).norm() / expected.norm()
        assert error < case.tolerance, f"position {position}"


@every_path
@pytest.mark.parametrize("name", THREADED)
def test_threads_compute_what_one_does(path: Path, name: str) -> None:
    layers, shape = CASES[name].make(GeneratedKernels(path))
    tokens = torch.randn(20, 1, 80)
    outputs: list[list[Tensor]] = []

    for threads in (1, 2):
        kernels = GeneratedKernels(path, threads)
        decoder = Decoder(kernels, layers, shape)
        caches = [make_cache(shape.attention, 32, CASES[name].dtype) for _ in layers]
        outputs.append([token.clone() for token in tokens])
        for position, token in enumerate(outputs[-1]):
            decoder(token, caches, position, angles_at(shape, position))
        kernels.close()

    assert torch.equal(torch.cat(outputs[0]), torch.cat(outputs[1]))


class NotedJobs(GeneratedKernels):
    """Kernels of one thread that cut their jobs for more, and note how."""

    def __init__(self, shares: int) -> None:
        super().__init__(BEST)
        self._library = Library(BEST)  # which has not compiled `emit_run` before
        self._shares = shares
        self._memory = torch.zeros(256, dtype=torch.int64)  # the job, then how many numbers follow

    @property
    def job(self) -> int:
        return self._memory.data_ptr()

    @property
    def shares(self) -> int:
        return self._shares

    @property
    def parts(self) -> list[int]:
        """In how many parts each job was done."""
        count, *numbers = self._memory[JOB_BYTES // 8 :].tolist()
        jobs = zip(numbers[:count:2], numbers[1:count:2], strict=True)
        return [-(-blocks // step) for blocks, step in jobs]


def emit_noted_run(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Write an `emit_run` that notes the number of blocks, and how many are taken at a time."""
    run = emit_run(module, f"{name}_inner", path)
    e = Emitter(ir.Function(module, RUN, name), path)
    job, *_, blocks, step = e.arguments
    noted = job.skip(JOB_BYTES).of(I64)
    count = noted[0]
    noted[count + 1], noted[count + 2], noted[0] = blocks, step, count + 2
    e.call(run, e.arguments)
    return e.end()


def test_one_key_head_is_shared_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_kernel, "emit_run", emit_noted_run)
    kernels, heads, cached = NotedJobs(shares=8), make_heads(4, 1, 16, 16, F32), 8 * PANEL
    layers = [random_layer(kernels, heads, 32, 64, (INT4,) * 4)]
    shape = layer_shape(layers[0], heads, epsilon=EPSILON)
    caches = [make_cache(heads, cached, F32)]

    Decoder(kernels, layers, shape)(
        torch.randn(1, 32), caches, cached - 1, angles_at(shape, cached - 1)
    )

    _qkv, attention, _combine, _output, _gate_up, _down = kernels.parts
    assert attention == kernels.shares


def test_a_decoder_follows_caches_that_move() -> None:
    kernels = GeneratedKernels(BEST)
    heads = make_heads(2, 1, 16, 16, F32)
    layers = [random_layer(kernels, heads, 32, 64, (INT4,) * 4)]
    shape = layer_shape(layers[0], heads, epsilon=EPSILON)
    decoder, other = (Decoder(kernels, layers, shape) for _ in range(2))
    large = [make_cache(heads, 64, F32)]
    growing = [make_cache(heads, 8, F32)]

    for position, token in enumerate(torch.randn(40, 1, 32)):
        if position == growing[0].shape[2]:
            growing = [F.pad(growing[0], (0, 0, 0, 8))]
        straight, moved = token.clone(), token.clone()
        decoder(straight, large, position, angles_at(shape, position))
        other(moved, growing, position, angles_at(shape, position))

        assert torch.equal(straight, moved)


def test_a_cache_in_the_place_of_a_smaller_one_is_another() -> None:
    kernels = GeneratedKernels(BEST)
    heads = make_heads(4, 2, 16, 16, F32)
    layers = [random_layer(kernels, heads, 32, 64, (INT4,) * 4)]
    shape = layer_shape(layers[0], heads, epsilon=EPSILON)
    decoder, fresh = (Decoder(kernels, layers, shape) for _ in range(2))
    memory = torch.zeros(2 * 2 * 32 * 16)
    small, large = memory[: 2 * 2 * 8 * 16].view(2, 2, 8, 16), memory.view(2, 2, 32, 16)
    token = torch.randn(1, 32)

    decoder(token.clone(), [small], 0, angles_at(shape, 0))
    memory.zero_()
    here, expected = token.clone(), token.clone()
    decoder(here, [large], 0, angles_at(shape, 0))
    memory.zero_()
    fresh(expected, [large], 0, angles_at(shape, 0))

    assert torch.equal(here, expected)
    assert torch.equal(memory.view(2, 2, 32, 16)[:, :, 1:], torch.zeros(2, 2, 31, 16))
