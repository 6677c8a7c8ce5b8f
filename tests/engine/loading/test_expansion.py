"""The matrices of latent attention are the same, whichever order files have them in."""

from collections.abc import Callable, Mapping

import pytest
import torch
from kernel_paths import REFERENCE
from torch import Tensor

from potluck.engine.kernels import PackedWeight
from potluck.engine.layers.linear import FloatLinear, PackedLinear
from potluck.engine.loading.expansion import make_ups
from potluck.engine.loading.filling import Filling
from potluck.engine.loading.targets import Target
from potluck.model.formats import INT8
from potluck.model.mixing.latent import EXPANSION, KEY_UP, VALUE_UP, LatentSpec

HEADS, RANK, PLAIN, VALUE = 3, 32, 16, 48
CPU = torch.device("cpu")


def empty(rows: int, width: int) -> FloatLinear:
    return FloatLinear(torch.empty(rows, width), None, torch.nn.functional.linear)


def empty_packed(rows: int, width: int) -> PackedLinear:
    return PackedLinear(PackedWeight.empty(rows, width, INT8), None, REFERENCE)


def values_of(linear: object) -> Tensor:
    match linear:
        case PackedLinear(weight=packed):
            return packed.dequantise()
        case FloatLinear(weight=weight):
            return weight
        case _:
            raise AssertionError(linear)


def filled(*, is_ordered: bool, is_packed: bool, files: Mapping[str, Tensor]) -> list[Tensor]:
    spec = LatentSpec(
        hidden_size=64, heads=HEADS, query_rank=None, rank=RANK, plain_dim=PLAIN, rotary_dim=8,
        value_dim=VALUE, scale=1.0, is_ordered=is_ordered,
    )  # fmt: skip

    def fill(targets: list[tuple[str, Target]]) -> Callable[[], None]:
        for name, target in targets:
            target.fill(0, files[name])
        return lambda: None

    filling = Filling(fill, CPU)
    with filling.layer():
        ups = make_ups(
            spec,
            "layer.",
            make=empty_packed if is_packed else empty,
            filling=filling,
            dtype=torch.float32,
            kernels=REFERENCE if is_packed else None,
        )
    filling.finish()
    return [values_of(up) for up in ups]


@pytest.mark.parametrize("is_packed", [False, True])
def test_parts_in_order_and_the_whole_give_the_same_matrices(is_packed: bool) -> None:
    whole = torch.randn(HEADS, PLAIN + VALUE, RANK)
    keys, values = whole.split((PLAIN, VALUE), 1)
    files = {
        f"layer.{EXPANSION}.weight": whole.view(-1, RANK),
        f"layer.{KEY_UP}.weight": keys.transpose(1, 2).reshape(-1, PLAIN),
        f"layer.{VALUE_UP}.weight": values.reshape(-1, RANK),
    }

    made = filled(is_ordered=False, is_packed=is_packed, files=files)
    ordered = filled(is_ordered=True, is_packed=is_packed, files=files)

    assert all(torch.equal(one, other) for one, other in zip(made, ordered, strict=True))
    query, latent = torch.randn(PLAIN), torch.randn(RANK)
    absorbed = made[0].view(HEADS, RANK, PLAIN)[1] @ query
    tolerance = 0.3 if is_packed else 1e-4
    torch.testing.assert_close(
        absorbed @ latent, query @ (keys[1] @ latent), atol=tolerance, rtol=tolerance
    )
