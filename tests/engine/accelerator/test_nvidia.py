"""Our own kernels for NVIDIA GPUs compute what torch does.

Where there is no such GPU, torch computes in their place, and the code around them is tested. `test_on_a_gpu.py` has whole
stages.
"""

from functools import cache

import pytest
import torch
from torch import Tensor
from torch_operators import TorchOperators
from weight_formats import every_format

from potluck.engine import gates
from potluck.engine.accelerator.nvidia.experts import NvidiaExperts, experts_of
from potluck.engine.accelerator.nvidia.layers import attends, gate_of, norm_of, turns_heads
from potluck.engine.accelerator.nvidia.linear import NvidiaLinear
from potluck.engine.accelerator.nvidia.operators import DTYPES, NvidiaOperators, find_operators
from potluck.engine.accelerator.probe import multiplies
from potluck.engine.kernels import PackedWeight, ReferenceKernels, Router
from potluck.engine.layers.mlp import GatedMlp, MoE
from potluck.engine.layers.norms import torch_norm
from potluck.engine.layers.rotary import rotate
from potluck.model.formats import INT4_SUPER, PackedFormat
from potluck.model.routing import Routing

HAS_GPU = torch.cuda.is_available() and torch.version.hip is None
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}


@pytest.fixture
def operators(dtype: torch.dtype) -> NvidiaOperators:
    found = find_operators(DEVICE, dtype)
    assert (found is not None) is HAS_GPU
    return found or TorchOperators(dtype)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@cache
def packed_matrix(rows: int, columns: int, seed: int) -> PackedWeight:
    return ReferenceKernels().pack(
        random(rows, columns, seed=seed).cpu() / columns**0.5, INT4_SUPER
    )


def off(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.double().cpu(), theirs.double().cpu()
    return ((ours - theirs).norm() / theirs.norm()).item()


@every_dtype
@every_format
@pytest.mark.parametrize(
    ("rows", "width"), [(1072, 416), (40, 1000), (16, 32), (256, 4096)] if HAS_GPU else [(40, 1000)]
)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 9, 70] if HAS_GPU else [1, 9])
def test_a_packed_matrix_multiplies(
    operators: NvidiaOperators, weight_format: PackedFormat, rows: int, width: int, tokens: int
) -> None:
    packed = ReferenceKernels().pack(random(rows, width).cpu(), weight_format)
    bias = random(rows, dtype=operators.dtype, seed=1)
    x = random(tokens, width, dtype=operators.dtype, seed=2)
    linear = NvidiaLinear(packed, bias, operators=operators)
    linear.place()

    y = linear(x)

    expected = x.double().cpu() @ packed.dequantise().double().t() + bias.double().cpu()
    few = tokens <= 8  # inputs are quantised to 8 bits
    assert off(y, expected) < (0.01 if few else 10 * ROUNDING[operators.dtype])


@every_dtype
def test_all_formats_are_found_right(operators: NvidiaOperators) -> None:
    from potluck.model.formats import PACKED_FORMATS

    assert [held.name for held in PACKED_FORMATS if not multiplies(operators, held)] == []


@every_dtype
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(
    ("heads", "group", "size", "length"),
    [(8, 4, 64, 256), (8, 5, 128, 1000), (2, 6, 80, 130), (4, 1, 256, 4096), (2, 16, 128, 65), (1, 8, 96, 3)],
)  # fmt: skip
def test_one_token_attends(
    operators: NvidiaOperators, heads: int, group: int, size: int, length: int, is_masked: bool
) -> None:
    dtype = operators.dtype
    cached = random(2, heads, length + 7, size, dtype=dtype)[:, :, 4 : length + 4]
    q = random(heads, group, size, dtype=dtype, seed=1)
    mask = None
    if is_masked:
        mask = torch.zeros(length, dtype=dtype, device=DEVICE)
        mask[length // 2 + 1 :] = -torch.inf
        mask[: length // 9] = -torch.inf
    assert attends(operators, size, group)

    y = operators.attend(q, cached[0], cached[1], mask, 0.1)

    scores = q.double() @ cached[0].double().transpose(1, 2) * 0.1
    powers = (scores if mask is None else scores + mask.double()).softmax(-1)
    assert off(y, (powers @ cached[1].double()).flatten()) < ROUNDING[dtype]


@every_dtype
@pytest.mark.parametrize("width", [64, 2048, 12000])
def test_rows_are_normed(operators: NvidiaOperators, width: int) -> None:
    x = random(5, width, dtype=operators.dtype)
    weight = random(width, seed=1)

    y = norm_of(operators, torch_norm)(x, (width,), weight, 1e-5)

    assert y.dtype == operators.dtype
    assert off(y, torch.rms_norm(x.double(), (width,), weight.double(), 1e-5)) < ROUNDING[y.dtype]


@every_dtype
def test_heads_are_normed_and_rotated_in_place(operators: NvidiaOperators) -> None:
    x = random(7, 12, 64, dtype=operators.dtype)
    before, some = x.clone(), x[:, :9]
    weight = random(9, 64, seed=1)
    half, other = (random(7, 1, 24, dtype=operators.dtype, seed=seed) for seed in (2, 3))
    cosines, sines = torch.cat([half, half], -1), torch.cat([-other, other], -1)

    operators.norm_heads(some, weight, 1e-5)
    operators.rotate(some[..., :48], cosines, sines)

    expected = torch.rms_norm(before[:, :9].double(), (64,), None, 1e-5) * weight.double()
    rotate(expected[..., :48], cosines.double(), sines.double())
    assert off(some, expected) < 2 * ROUNDING[operators.dtype]
    assert torch.equal(x[:, 9:], before[:, 9:])


@every_dtype
def test_what_turns_heads_is_found_right_or_wrong(
    operators: NvidiaOperators, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert turns_heads(operators)

    monkeypatch.setattr(operators, "rotate", lambda *_: None)

    assert not turns_heads(operators)


@every_dtype
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "sigmoid"])
def test_gates_are_applied(operators: NvidiaOperators, activation: gates.GateFunction) -> None:
    x = random(5, 2 * 777, dtype=operators.dtype)

    y = gate_of(operators)(x, activation)

    assert off(y, gates.gate(x.double(), activation)) < 2 * ROUNDING[operators.dtype]


@every_dtype
@pytest.mark.parametrize("tokens", [1, 3, 9, 200])
@pytest.mark.parametrize("has_bias", [False, True])
def test_chosen_experts_compute_what_they_do_one_by_one(
    operators: NvidiaOperators, tokens: int, has_bias: bool
) -> None:
    width, inner, count = 256, 96, 12

    def matrix(rows: int, columns: int, seed: int) -> NvidiaLinear:
        bias = random(rows, dtype=operators.dtype, seed=seed) if has_bias else None
        linear = NvidiaLinear(packed_matrix(rows, columns, seed), bias, operators=operators)
        linear.place()
        return linear

    mlps = [
        GatedMlp(matrix(2 * inner, width, one), matrix(width, inner, 100 + one), "silu")
        for one in range(count)
    ]
    routing = Routing(count=count, per_token=4, normalise=True)
    router = Router(random(count, width, seed=3), None, routing)
    together = experts_of(mlps, "silu", gates.gate, scales_input=False)
    assert isinstance(together, NvidiaExperts)
    x = random(tokens, width, dtype=operators.dtype, seed=4)

    y = MoE(router, mlps, together=together)(x)

    assert (together(x, torch.ones(tokens, count, device=DEVICE), 4, None) is None) is (
        tokens == 200
    )
    assert off(y, MoE(router, mlps)(x)) < 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="there is no NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_what_a_graph_replays_sees_new_inputs(operators: NvidiaOperators) -> None:
    packed = ReferenceKernels().pack(random(64, 256).cpu(), INT4_SUPER)
    linear = NvidiaLinear(packed, None, operators=operators)
    linear.place()
    x = random(1, 256, dtype=torch.bfloat16)
    linear(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear(x)

    x.copy_(random(1, 256, dtype=torch.bfloat16, seed=5))
    graph.replay()

    assert off(y, linear(x)) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_a_matrix_takes_the_bytes_of_its_files(operators: NvidiaOperators) -> None:
    weight = PackedWeight.empty(1024, 1024, INT4_SUPER)

    linear = NvidiaLinear(weight, None, operators=operators)

    assert linear.nbytes == INT4_SUPER.nbytes(1024, 1024)
