"""All experts of a chunk at once: each token has the bits that it has when experts are computed one by one."""

from pathlib import Path as Folder

import pytest
import torch
from kernel_paths import BEST
from tiny_models import make_model, whole_blocks
from torch import Tensor

from potluck.engine.kernels import Router
from potluck.engine.kernels.called.experts import PackedExpert, PackedExperts
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.paths import Path
from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import MoE, PackedMlp
from potluck.engine.pages import Scratch
from potluck.model.families.facts import Activation, ClampedSwiglu
from potluck.model.footprint import pair_bytes
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, PackedFormat
from potluck.model.routing import Routing
from potluck.model.schemes import Scheme


class LargestScratch(Scratch):
    """Remembers how many bytes were asked for at most."""

    most = 0

    def floats(self, rows: int, width: int) -> Tensor:
        self.most = max(self.most, 4 * rows * width)
        return super().floats(rows, width)


SWIGLU = ClampedSwiglu(alpha=1.7, limit=7.0, has_pairs=True)  # of gpt-oss
COUNT, HIDDEN, SIZE = 9, 72, 48  # inputs of a group and a part of one
# Every format on the best path; products of each format on each path are compared in `test_products.py`.
HELD = [
    pytest.param(
        path, held, id=f"{path.name}-{held.dtype}", marks=[pytest.mark.slow] * (path != BEST)
    )
    for path in host_paths()
    for held in (INT8, INT4, INT4_OFFSET, INT4_SUPER)
    if path == BEST or held == INT8
]


def experts_of(
    kernels: GeneratedKernels,
    held: PackedFormat,
    activation: Activation = "silu",
    *,
    per_token: int = 3,
    has_bias: bool = False,
) -> tuple[PackedExperts, MoE]:
    """The same experts, at once and one by one."""
    generator = torch.Generator().manual_seed(0)

    def linear(rows: int, width: int) -> PackedLinear:
        weight = kernels.pack(torch.randn(rows, width, generator=generator), held)
        bias = torch.randn(rows, generator=generator) if has_bias else None
        return PackedLinear(weight, bias, kernels)

    mlps = [
        PackedMlp(linear(2 * SIZE, HIDDEN), linear(HIDDEN, SIZE), activation) for _ in range(COUNT)
    ]
    routing = Routing(count=COUNT, per_token=per_token, normalise=True)
    router = Router(torch.randn(COUNT, HIDDEN, generator=generator), None, routing)
    packed = [
        PackedExpert(
            gate_up=mlp.gate_up.weight,
            down=mlp.down.weight,
            gate_up_bias=mlp.gate_up.bias,
            down_bias=mlp.down.bias,
        )
        for mlp in mlps
        if isinstance(mlp.gate_up, PackedLinear)
    ]
    return PackedExperts(packed, activation, kernels, Scratch()), MoE(
        router, mlps, route=kernels.route
    )


def inputs(tokens: int) -> Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize(("path", "held"), HELD)
@pytest.mark.parametrize("threads", [1, 2])
def test_experts_at_once_are_those_one_by_one(path: Path, held: PackedFormat, threads: int) -> None:
    kernels = GeneratedKernels(path, threads)
    together, mixture = experts_of(kernels, held)
    for tokens in (1, 2, 7, 40, 130):
        x = inputs(tokens)
        factors = kernels.route(x, mixture.router)

        total = together(x, factors, 3)

        assert total is not None
        assert torch.equal(total, mixture._one_by_one(x, factors))
    kernels.close()


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", SWIGLU], ids=str)
@pytest.mark.parametrize("per_token", [1, COUNT])
def test_biases_and_any_number_of_experts_count(activation: Activation, per_token: int) -> None:
    kernels = GeneratedKernels(host_paths()[0])
    together, mixture = experts_of(kernels, INT4, activation, per_token=per_token, has_bias=True)
    x = inputs(20)
    factors = kernels.route(x, mixture.router)

    total = together(x, factors, per_token)

    assert total is not None
    assert torch.equal(total, mixture._one_by_one(x, factors))


def test_tokens_that_all_choose_the_same_leave_the_other_experts_out() -> None:
    kernels = GeneratedKernels(host_paths()[0])
    together, mixture = experts_of(kernels, INT8)
    x = inputs(1).repeat(50, 1)
    factors = kernels.route(x, mixture.router)

    total = together(x, factors, 3)

    assert total is not None
    assert torch.equal(total, mixture._one_by_one(x, factors))
    assert torch.equal(total, total[:1].repeat(50, 1))


def test_a_call_takes_no_more_memory_than_is_counted() -> None:
    kernels, scratch = GeneratedKernels(host_paths()[0]), LargestScratch()
    hidden, size, tokens = 256, 96, 70
    gate_up = kernels.pack(torch.zeros(2 * size, hidden), INT4)
    expert = PackedExpert(gate_up=gate_up, down=kernels.pack(torch.zeros(hidden, size), INT4))

    PackedExperts([expert] * 4, "silu", kernels, scratch)(
        torch.ones(tokens, hidden), torch.ones(tokens, 4), 4
    )

    assert 0 < scratch.most <= 4 * tokens * pair_bytes(hidden, size)


def test_a_packed_mixture_computes_its_experts_at_once(tmp_path: Folder) -> None:
    reference = make_model("qwen 3 moe", tmp_path, changes=whole_blocks("qwen 3 moe"))

    def is_at_once(scheme: Scheme) -> bool:
        mlp = reference.stage(scheme=scheme).weights.blocks[0].mlp
        assert isinstance(mlp, MoE)
        return mlp._together is not None

    assert is_at_once("int4")
    assert not is_at_once("f32")


def test_factors_that_are_not_numbers_are_left_to_others() -> None:
    kernels = GeneratedKernels(host_paths()[0])
    together, mixture = experts_of(kernels, INT8)
    x = inputs(5)
    x[2, 3] = torch.nan

    assert together(x, kernels.route(x, mixture.router), 3) is None
    assert (
        MoE(mixture.router, mixture.experts, route=kernels.route, together=together)(x)[2]
        .isnan()
        .all()
    )
