"""Every family's logits are those of `transformers`, however the model is cut and fed, through torch and through kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from config_layers import with_layers
from fast_families import GENERATED, each_of
from model_variants import VARIANTS
from tiny_models import CPU, Pipeline, Reference, difference, off
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.device import find_devices
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.norms import RmsNorm
from potluck.model.families.facts import POST_NORMS, PRE_NORMS, SANDWICH_NORMS, LayerNorms
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec

MakeReference = Callable[..., Reference]

TOKENS = 40  # more than any window of the variants, so that windows show
# The first token comes alone, then chunks, then single tokens beyond all windows.
PIECES = (1, 3, 7, 1, 18) + (1,) * 10
TOLERANCE = 1e-5  # of the largest logit; f32 has 1.2e-7, and four layers add up
# What a state gives is normed however little it is, and with it its error: transformers' own chunks and single
# tokens differ by 3e-5 in these.
DELTA_NET_TOLERANCE = 1e-4


def tolerance(reference: Reference) -> float:
    nets = DeltaNetSpec | ChannelDeltaSpec
    has_state = any(isinstance(layer.mixer, nets) for layer in reference.config.layers)
    return DELTA_NET_TOLERANCE if has_state else TOLERANCE


@pytest.mark.usefixtures("torch_alone")
@each_of(VARIANTS)
def test_logits_are_those_of_transformers_wherever_the_model_is_cut(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference).run(ids)

    assert difference(logits, reference.logits(ids)) < tolerance(reference)
    cuts = range(1, reference.config.num_layers)
    assert torch.equal(Pipeline(reference, cuts).run(ids), logits)


@pytest.mark.usefixtures("torch_alone")
@each_of(VARIANTS)
def test_a_prompt_in_pieces_is_the_prompt(make_reference: MakeReference, variant: str) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    logits = Pipeline(reference, [2]).run_in_pieces(ids, PIECES)

    assert difference(logits, reference.logits(ids)) < tolerance(reference)


@each_of(GENERATED)
def test_generated_layers_give_the_logits_of_transformers(
    make_reference: MakeReference, variant: str
) -> None:
    """All that kernels are written for is in one of these; compiling them takes most of the time."""
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)
    expected = reference.logits(ids)

    pipeline = Pipeline(reference, [2])

    assert difference(pipeline.run(ids), expected) < tolerance(reference)
    pipeline.restart()
    assert difference(pipeline.run_in_pieces(ids, PIECES), expected) < tolerance(reference)


@pytest.mark.parametrize(
    "variant",
    [
        "llama, biases",
        "gemma 2",
        "olmo 2",
        "qwen 3 moe",
        "qwen 3 next",
        "nemotron h",
    ],
)
def test_bf16_is_as_exact_as_that_of_transformers(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant, dtype=torch.bfloat16)
    ids = reference.prompt(TOKENS)
    exact = reference.logits(ids)  # in f32, with the weights that bf16 can hold

    logits = Pipeline(reference, [2], "bf16").run_in_pieces(ids, (30,) + (1,) * 10)

    reference.model.to(torch.bfloat16)
    theirs = reference.logits(ids)
    reference.model.to(torch.float32)
    assert off(logits, exact) < 0.05
    assert off(logits, exact) < 1.25 * off(theirs, exact)


class Doubling:
    """Doubles its input. It stands in place of attention or an MLP."""

    nbytes = 0

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x

    project = __call__

    def mix(self, rows: Tensor, *_: object) -> Tensor:
        return rows

    def output(self, rows: Tensor) -> Tensor:
        return rows


@pytest.mark.parametrize("multiplier", [1.0, 0.3])
@pytest.mark.parametrize("names", [PRE_NORMS, POST_NORMS, SANDWICH_NORMS], ids=str)
def test_norms_stand_where_the_specification_has_them_also_beside_a_multiplier(
    llama: Reference, names: LayerNorms[str], multiplier: float
) -> None:
    config = with_layers(llama.config, norms=names, residual_multiplier=multiplier)
    norms = names.map(lambda _: RmsNorm(torch.rand(config.hidden_size) + 0.5, 1e-5))
    doubling: Any = Doubling()
    layer = DecoderLayer(config.layers[0], doubling, doubling, norms)
    x = torch.randn(3, config.hidden_size)
    given = x.clone()

    def half(x: Tensor, before: RmsNorm | None, after: RmsNorm | None) -> Tensor:
        added = 2 * (x if before is None else before(x))
        return x + multiplier * (added if after is None else after(added))

    y = layer.forward(x, LayerCache(1, 2, torch.float32, CPU), Step(0, 3, (), CPU))

    expected = half(x, norms.before_mixer, norms.after_mixer)
    expected = half(expected, norms.before_mlp, norms.after_mlp)
    torch.testing.assert_close(y, expected)
    assert torch.equal(x, given)


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
