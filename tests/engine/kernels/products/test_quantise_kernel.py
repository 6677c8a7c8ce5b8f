"""Quantised numbers, as they are or gated in the same pass, are those of torch to half a step."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from kernel_paths import BEST, every_kernels
from torch import Tensor

from potluck.engine.kernels import Kernels, QuantisedInput
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.model.families.facts import Activation, ClampedSwiglu

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
every_shape = pytest.mark.parametrize("shape", [(1, 64), (1, 2048), (13, 70), (9, 31)], ids=str)


def assert_close(quantised: QuantisedInput, expected: Tensor) -> None:
    """Half a step of its group away at most, and what rounding adds."""
    padded = F.pad(expected, (0, -expected.shape[1] % 32)).unflatten(1, (-1, 32))
    step = padded.abs().amax(-1, keepdim=True) / 127
    got = F.pad(quantised.dequantise(), (0, -expected.shape[1] % 32)).unflatten(1, (-1, 32))
    assert ((got - padded).abs() <= 0.501 * step + 1e-30).all()


@every_kernels
@every_dtype
@every_shape
def test_numbers_are_quantised(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = (3 * torch.randn(shape)).to(dtype)

    quantised = kernels.quantise(x)

    assert_close(quantised, x.float())


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 31, 64])
def test_any_number_of_threads_writes_the_same_records(tokens: int) -> None:
    alone, together = (GeneratedKernels(BEST, threads) for threads in (1, 3))
    x = torch.randn(tokens, 70)

    for _ in range(20):
        assert torch.equal(together.quantise(x).records, alone.quantise(x).records)

    together.close()


@every_kernels
@every_activation
@every_dtype
@every_shape
def test_a_gate_is_quantised(
    kernels: Kernels, activation: Activation, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    tokens, width = shape
    gate_up = (5 * torch.randn(tokens, 2 * width)).to(dtype)

    quantised = kernels.quantise_gated(gate_up, activation)

    gate, up = gate_up.float().chunk(2, -1)
    assert_close(quantised, ACTIVATIONS[activation](gate) * up)


@every_kernels
@every_dtype
@pytest.mark.parametrize("has_pairs", [True, False])
@pytest.mark.parametrize("width", [64, 70, 31, 2])
def test_gates_and_ups_are_clamped(
    kernels: Kernels, width: int, has_pairs: bool, dtype: torch.dtype
) -> None:
    gate, up = (5 * torch.randn(2, 9, width)).to(dtype)
    gate_up = torch.stack((gate, up), -1).flatten(1) if has_pairs else torch.cat((gate, up), 1)

    quantised = kernels.quantise_gated(gate_up, ClampedSwiglu(1.702, 7.0, has_pairs))

    gate, up = gate.double().clamp(max=7), up.double().clamp(-7, 7)
    assert_close(quantised, (gate * (1.702 * gate).sigmoid() * (up + 1)).float())


@every_kernels
@every_dtype
@every_shape
def test_ups_without_gates_are_squared(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    ups = (5 * torch.randn(shape)).to(dtype)

    quantised = kernels.quantise_gated(ups, "relu2")

    assert_close(quantised, ups.float().relu().square())


@every_kernels
def test_squaring_hides_no_nan(kernels: Kernels) -> None:
    ups = torch.ones(2, 64)
    ups[1, 40] = torch.nan

    squares = kernels.quantise_gated(ups, "relu2").dequantise()

    assert squares[0].isfinite().all()
    assert squares[1].isnan().any()


@every_kernels
@pytest.mark.parametrize("place", [0, 1, 40, 41])
def test_clamping_hides_no_nan(kernels: Kernels, place: int) -> None:
    gate_up = torch.ones(2, 64)
    gate_up[1, place] = torch.nan

    gated = kernels.quantise_gated(gate_up, ClampedSwiglu(1.702, 7.0, has_pairs=True)).dequantise()

    assert gated[0].isfinite().all()
    assert gated[1].isnan().any()


@every_kernels
@every_activation
def test_gates_of_all_sizes(kernels: Kernels, activation: Activation) -> None:
    numbers = [0.0, -0.0, 1e-30, -1e-6, 0.3, -0.7, 3, -3, 20, -20, 87, -87, 1e4, -1e4, 3e38, -3e38]
    gate_up = torch.stack([torch.tensor([gate, 1.0]) for gate in numbers])

    values = kernels.quantise_gated(gate_up, activation).dequantise()[:, 0]

    exact = ACTIVATIONS[activation](gate_up[:, 0].double()).float()
    # torch's own gelu loses digits where 1 + tanh cancels; the kernels stay within 1e-6.
    torch.testing.assert_close(values, exact, rtol=2e-5, atol=1e-30)


@every_kernels
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(kernels: Kernels, bad: float) -> None:
    x = torch.ones(2, 64)
    x[1, 5] = bad

    plain = kernels.quantise(x).dequantise()
    gated = kernels.quantise_gated(x).dequantise()

    assert plain[0].isfinite().all()
    assert not plain[1].isfinite().all()
    assert gated[0].isfinite().all()
    assert not gated[1].isfinite().all()
