"""Every family's logits are those of `transformers`, however the model is cut and fed."""

import math
from collections.abc import Callable

import pytest
import torch
from tiny_models import VARIANTS, Pipeline, Reference
from torch import Tensor

from potluck.engine.blocks import RmsNorm, Rotary, rotary_frequencies, rotate
from potluck.engine.device import find_devices
from potluck.model.config import LinearScaling, Rope

MakeReference = Callable[..., Reference]

TOKENS = 40  # more than any window of the variants, so that windows show
TOLERANCE = 1e-5  # of the largest logit; f32 has 1.2e-7, and four layers add up


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(
    make_reference: MakeReference, variant: str, seed: int
) -> None:
    reference = make_reference(variant, seed=seed)
    ids = reference.prompt(TOKENS, seed)

    logits = Pipeline(reference).run(ids)

    assert difference(logits, reference.logits(ids)) < TOLERANCE


@pytest.mark.parametrize("cuts", [(1,), (3,), (1, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_cut_into_stages_is_the_model(
    make_reference: MakeReference, variant: str, cuts: tuple[int, ...]
) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference, cuts).run(ids)

    assert torch.equal(logits, Pipeline(reference).run(ids))
    assert difference(logits, reference.logits(ids)) < TOLERANCE


@pytest.mark.parametrize(
    "sizes",
    [(30,) + (1,) * 10, (1,) * TOKENS, (16, 16, 8), (3, 7, 1, 20, 9)],
    ids=["prefill and decode", "decode alone", "chunks", "any pieces"],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_in_pieces_is_the_prompt(
    make_reference: MakeReference, variant: str, sizes: tuple[int, ...]
) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference, [2]).run_in_pieces(ids, sizes)

    assert difference(logits, reference.logits(ids)) < TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_bf16_is_as_exact_as_that_of_transformers(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant, dtype=torch.bfloat16)
    ids = reference.prompt(TOKENS)
    exact = reference.logits(ids)  # in f32, with the weights that bf16 can hold

    logits = Pipeline(reference, [2], torch.bfloat16).run_in_pieces(ids, (30,) + (1,) * 10)

    reference.model.to(torch.bfloat16)
    theirs = reference.logits(ids)
    reference.model.to(torch.float32)
    scale = exact.pow(2).mean().sqrt()
    ours_off = (logits - exact).pow(2).mean().sqrt() / scale
    theirs_off = (theirs - exact).pow(2).mean().sqrt() / scale
    assert ours_off < 0.05
    assert ours_off < 1.25 * theirs_off


@pytest.mark.gpu
@pytest.mark.skipif(find_devices()[0].kind == "cpu", reason="this computer has a CPU alone")
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_accelerator_computes_what_the_cpu_does(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)
    device = find_devices()[0].torch_device

    logits = Pipeline(reference, [2], device=device).run_in_pieces(ids, (20, 10) + (1,) * 10)

    assert difference(logits, reference.logits(ids)) < 1e-4  # other orders of sums


def test_a_norm_of_16_bits_is_computed_in_32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # the square of which f16 cannot hold

    assert RmsNorm(torch.ones(4), 1e-6)(x).tolist() == [[1.0] * 4]


def test_rotation_turns_pairs_and_keeps_their_length() -> None:
    rotary = Rotary(Rope(), head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    x = torch.randn(5, 3, 8)
    turned = x.clone()

    rotate(turned, *rotary.angles(position=700, tokens=5))

    pairs, turned_pairs = x.view(5, 3, 2, 4), turned.view(5, 3, 2, 4)
    torch.testing.assert_close(turned_pairs.norm(dim=2), pairs.norm(dim=2))
    first = torch.atan2(turned_pairs[0, 0, 1, 0], turned_pairs[0, 0, 0, 0])
    before = torch.atan2(pairs[0, 0, 1, 0], pairs[0, 0, 0, 0])
    # The first pair turns by one radian a position.
    assert torch.cos(first - before).item() == pytest.approx(math.cos(700.0), abs=1e-4)


def test_angles_are_the_same_wherever_a_table_was_grown() -> None:
    def angles(*positions: int) -> Tensor:
        rotary = Rotary(Rope(), head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
        for position in positions:
            rotary.angles(position, 1)
        return rotary.angles(1500, 3)[0]

    assert torch.equal(angles(), angles(0, 511, 512, 1600))


def test_linear_scaling_slows_every_pair() -> None:
    plain = rotary_frequencies(Rope(), 8)
    scaled = rotary_frequencies(Rope(scaling=LinearScaling(factor=4.0)), 8)

    torch.testing.assert_close(scaled * 4, plain)
