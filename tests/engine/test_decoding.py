"""One token through a stage's runs is the token through its layers, whatever the family."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest
import torch
from chosen_kernels import attend_unrounded, compute_with
from config_layers import with_layers
from tiny_models import CONTEXT, CPU, Reference, make_model, off, whole_blocks
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.new_cache import new_cache
from potluck.engine.generated.run import GeneratedRun
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import LayerRun, Run
from potluck.engine.layers.rotary import Rotary
from potluck.engine.loading.stage_weights import StageWeights
from potluck.model.cache_rows import KeysAndValues
from potluck.model.caches import CacheSizes
from potluck.model.schemes import Scheme

TOKENS = 16  # more than any window
# Of the hidden states. Both paths multiply with the same integers, but round their inputs to 8 bits:
# where a last bit decides, that is a step of 1/127, which the next layers pass on. Which one decides
# differs with the processor (torch's sums): 0.0210 was seen on an Intel Xeon.
TOLERANCE = 4 / 127

# What kernels are written for in each family is compared with `transformers` in `test_blocks.py`, and tokens with chunks
# in `test_one_answer.py`: here are the kinds of layers.
FAMILIES = [
    "llama, biases",
    "gemma 2",
    "gemma 4",
    "command a",
    *(
        pytest.param(variant, marks=pytest.mark.slow)  # each takes half a second to compile
        for variant in (
            *("qwen 3.5", "granite 4", "lfm 2", "olmo 2, no shared key heads, bias"),
            *("starcoder 2", "phi 2"),
        )
    ),
]
MIXTURES = [
    *("gpt-oss", "qwen 3 moe, some layers, odd", "gemma 4, experts"),
    pytest.param("phi 3.5 moe", marks=pytest.mark.slow),
]


Load = Callable[[str], Reference]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Make a variant with projections of whole blocks of rows."""

    @cache
    def make(variant: str) -> Reference:
        return make_model(variant, tmp_path_factory.mktemp("model"), changes=whole_blocks(variant))

    return make


def load_for_torch(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> StageWeights:
    """Load the same packed weights as on a computer for which no function can be generated."""
    with monkeypatch.context() as patch:
        compute_with(patch)
        return reference.weights(scheme="int8")


def make_caches(weights: StageWeights) -> list[LayerCache]:
    specs = [spec.cache(CacheSizes(number_bytes=4)) for spec in weights.config.layers]
    caches = [new_cache(spec, weights.cache_dtype, CPU) for spec in specs]
    for spec, layer in zip(specs, caches, strict=True):
        layer.resize(CONTEXT if isinstance(spec.row, KeysAndValues) else spec.rows(CONTEXT), 0)
    return caches


def make_step(weights: StageWeights, position: int, tokens: int) -> Step:
    ropes = weights.config.ropes
    rotaries = [Rotary(rope, CONTEXT, weights.dtype, CPU) for rope in ropes]
    return Step(position, tokens, rotaries, CPU)


def random_tokens(weights: StageWeights) -> Tensor:
    """Return hidden states (T, D), the same whether or not a model was made just before."""
    seeded = torch.Generator().manual_seed(0)
    return torch.randn(TOKENS, weights.config.hidden_size, generator=seeded)


@pytest.mark.parametrize(("scheme", "is_rounded"), [("int8", True), ("int4", True), ("f16", False)])
@torch.inference_mode()
def test_keys_and_values_are_rounded_to_bf16_only_beside_packed_weights(
    make: Load, scheme: Scheme, is_rounded: bool
) -> None:
    weights = make("llama, biases").weights(scheme=scheme)
    caches, x = make_caches(weights), random_tokens(weights)[:5].to(weights.dtype)

    weights.runs[0](x[:1], caches, make_step(weights, 0, 1))
    weights.blocks[0].forward(x[1:], caches[0], make_step(weights, 1, 4))

    for rows in (caches[0].both[:, :, :1], caches[0].both[:, :, 1:5]):
        assert rows.dtype == torch.float16
        assert torch.equal(rows.bfloat16().half(), rows) == is_rounded


def run_tokens(weights: StageWeights, tokens: Tensor, prompt: int = 0) -> Tensor:
    """(T, D) → (T, D): the prompt goes through the layers, then each token through the runs."""
    caches = make_caches(weights)
    outputs = [run_layers(weights, tokens[:prompt], caches, 0)] if prompt else list[Tensor]()
    for position, token in enumerate(tokens[prompt:], prompt):
        x, step = token[None], make_step(weights, position, 1)
        for run in weights.runs:
            x = run(x, caches, step)
        outputs.append(x)
    return torch.cat(outputs)


def run_chunks(weights: StageWeights, tokens: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, D) → (T, D): pieces of these sizes go through the layers."""
    caches, outputs, position = make_caches(weights), list[Tensor](), 0
    for some in tokens.split(list(sizes)):
        outputs.append(run_layers(weights, some, caches, position))
        position += len(some)
    return torch.cat(outputs)


def run_layers(
    weights: StageWeights, x: Tensor, caches: Sequence[LayerCache], position: int
) -> Tensor:
    step = make_step(weights, position, len(x))
    for block, layer in zip(weights.blocks, caches, strict=True):
        x = block.forward(x, layer, step)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*FAMILIES, *MIXTURES])
@torch.inference_mode()
def test_runs_and_chunks_compute_what_torch_does(
    make: Load, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    attend_unrounded(monkeypatch)
    weights, plain = (
        make(variant).weights(scheme="int8"),
        load_for_torch(make(variant), monkeypatch),
    )
    tokens = random_tokens(weights)
    given = tokens.clone()

    one_by_one = run_tokens(weights, tokens)
    in_chunks = run_chunks(weights, tokens, (9, 1, 6))
    # Keys that are all turned too far look the same to each other, and not to those of a prompt.
    after_a_prompt = run_tokens(weights, tokens, prompt=9)

    assert {type(run) for run in plain.runs} == {LayerRun}
    expected = run_tokens(plain, tokens)
    assert off(one_by_one, expected) < TOLERANCE
    assert off(after_a_prompt, expected) < TOLERANCE
    assert off(in_chunks, expected) < TOLERANCE
    assert torch.equal(tokens, given)


@pytest.mark.parametrize(("variant", "kind"), [("gemma 2", LayerRun), (MIXTURES[0], GeneratedRun)])
@torch.inference_mode()
def test_a_multiplier_beside_norms_after_each_half_is_left_to_torch_and_beside_experts_not(
    make: Load, monkeypatch: pytest.MonkeyPatch, variant: str, kind: type[Run]
) -> None:
    """No family has either."""
    reference = make(variant)
    scaled = with_layers(reference.config, residual_multiplier=0.37)
    reference = replace(reference, config=scaled)
    attend_unrounded(monkeypatch)
    weights, plain = reference.weights(scheme="int8"), load_for_torch(reference, monkeypatch)
    tokens = random_tokens(weights)

    one_by_one = run_tokens(weights, tokens)

    assert {type(run) for run in weights.runs} == {kind}
    assert off(one_by_one, run_tokens(plain, tokens)) < TOLERANCE


@pytest.mark.parametrize(
    ("scheme", "variant"),
    [("bf16", "llama, biases"), ("f16", "gemma 2"), ("f16", MIXTURES[1])],
)
@torch.inference_mode()
def test_a_token_of_16_bits_is_as_exact_through_runs_as_through_layers(
    make: Load, variant: str, scheme: Scheme
) -> None:
    weights, exact = make(variant).weights(scheme=scheme), make(variant).weights()
    tokens = random_tokens(weights).to(weights.dtype)

    one_by_one = run_tokens(weights, tokens)

    layers = run_chunks(weights, tokens, [1] * TOKENS)
    expected = run_tokens(exact, tokens.float())
    assert one_by_one.dtype == weights.dtype
    assert off(one_by_one.float(), expected) < 1.25 * off(layers.float(), expected)
    assert {type(run) for run in weights.runs} == {GeneratedRun}


@pytest.mark.parametrize("variant", ["llama, biases", MIXTURES[0]])
@torch.inference_mode()
def test_packed_weights_are_as_exact_with_attention_that_is_rounded_to_bf16(
    make: Load, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    rounded, exact = make(variant).weights(scheme="int8"), make(variant).weights()
    attend_unrounded(monkeypatch)
    unrounded = make(variant).weights(scheme="int8")
    tokens = random_tokens(exact)

    expected = run_chunks(exact, tokens, [TOKENS])

    off_by = [off(run_chunks(one, tokens, [TOKENS]), expected) for one in (rounded, unrounded)]
    assert off_by[0] < 1.25 * off_by[1]
    assert off_by[0] != off_by[1]


@torch.inference_mode()
def test_caches_of_int8_compute_what_torch_does_with_them(
    make: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.engine.loading.builder.cache_dtype", lambda *_, **__: torch.int8)
    reference = make("gemma 2")
    weights, plain = reference.weights(scheme="int8"), load_for_torch(reference, monkeypatch)
    tokens = random_tokens(weights)

    one_by_one = run_tokens(weights, tokens)
    in_chunks = run_chunks(weights, tokens, (9, 1, 6))

    expected = run_tokens(plain, tokens)
    assert off(one_by_one, expected) < TOLERANCE
    assert off(in_chunks, expected) < TOLERANCE
    assert [type(run) for run in weights.runs] == [GeneratedRun]


@torch.inference_mode()
def test_layers_in_the_middle_use_the_caches_that_are_theirs(
    make: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_for_torch(make("gemma 2"), monkeypatch)
    tokens = random_tokens(weights)
    cut = replace(weights, runs=(LayerRun(0, weights.blocks[:1]), LayerRun(1, weights.blocks[1:])))

    assert torch.equal(run_tokens(cut, tokens), run_tokens(weights, tokens))


@pytest.mark.parametrize("variant", [*FAMILIES, *MIXTURES])
def test_layers_of_one_kind_are_one_call(make: Load, variant: str) -> None:
    weights = make(variant).weights(scheme="int8")

    layers = weights.config.layer_kinds
    kinds = groupby((kind.has_experts, getattr(kind.spec.mixer, "head_dim", 0)) for kind in layers)
    assert [type(run) for run in weights.runs] == [GeneratedRun for _ in kinds]
