"""Stages with packed weights compute as the rounded weights do, and the same however they are cut."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chosen_kernels import compute_with
from safetensors.torch import load_file, save_file
from tiny_models import Pipeline, Reference, off, stored_tensors

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.layers.blocks import LayerRun
from potluck.engine.layers.linear import JoinedLinear, PackedLinear
from potluck.model.formats import PackedFormat
from potluck.model.naming import decoder_names
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.tensor_formats import tensor_format, weight_bytes

MakeReference = Callable[..., Reference]

TOKENS = 24
# Of the logits' own size. What is left beside the weights' rounding is that of the inputs to 8 bits,
# whose errors cancel each other less in these models of a few dozen inputs than in real ones.
TOLERANCE = 0.08
every_scheme_and_variant = pytest.mark.parametrize(
    ("scheme", "variant"),
    [
        *((scheme, "llama, whole blocks") for scheme in PACKED_SCHEMES),
        *(
            ("int4", variant)
            for variant in (
                "llama",
                "qwen 2",
                "gemma 2",
                "qwen 3 moe",
            )
        ),
        *(
            pytest.param("int4", variant, marks=pytest.mark.slow)
            for variant in (
                "gpt-oss",
                "deepseek 3",
                "deepseek 4",
                "kimi linear",
                "gemma 4",
                "gemma 4 e2b",
                "qwen 3.5",
                "granite 4",
                "nemotron h",
                "nemotron h, narrow experts",
                "apertus",
                "falcon h1",
                "starcoder 2",
                "phi 3.5 moe",
                "lfm 2",
                "laguna",
                "mimo 2 flash",
            )
        ),
    ],
)


def rounded(reference: Reference, scheme: Scheme, folder: Path) -> Reference:
    """Return the same model in f32, with the values that its weights have in the scheme."""
    kernels, config = ReferenceKernels(), reference.config
    weights = load_file(reference.tensors[0].path)
    names = decoder_names(weights)
    for name, weight in weights.items():
        # a matrix (out, in), or those of all experts, each (in, out)
        if name.endswith("conv1d.weight"):  # which stays f32
            continue
        stacked = None if config.experts is None else config.experts.facts.stacked
        is_turned = weight.dim() == 3 and stacked == "columns"
        matrices = weight.mT if is_turned else weight if weight.dim() == 3 else weight[None]
        held = tensor_format(config, names[name], tuple(matrices[0].shape), scheme)
        if isinstance(held, PackedFormat):
            # Rows that are multiplied by numbers are so before they are rounded.
            runs = config.row_scales(names[name]) or ((len(matrices[0]), 1.0),)
            factors = torch.cat([torch.full((rows, 1), factor) for rows, factor in runs])
            packed = [
                kernels.pack(matrix.float() * factors, held).dequantise() / factors
                for matrix in matrices
            ]
            whole = torch.stack(packed) if weight.dim() == 3 else packed[0]
            weights[name] = (whole.mT if is_turned else whole).contiguous()
    save_file(weights, folder / "model.safetensors")
    shutil.copy(reference.tensors[0].path.with_name("config.json"), folder)
    return dataclasses.replace(reference, tensors=stored_tensors(folder))


@every_scheme_and_variant
def test_logits_are_those_of_the_rounded_weights_wherever_the_model_is_cut(
    make_reference: MakeReference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    scheme: Scheme,
) -> None:
    reference = make_reference(variant)
    ids, sizes = reference.prompt(TOKENS), (20, 1, 1, 1, 1)

    logits = Pipeline(reference, [], scheme).run_in_pieces(ids, sizes)

    assert torch.equal(Pipeline(reference, [1, 3], scheme).run_in_pieces(ids, sizes), logits)
    compute_with(monkeypatch)  # kernels in f32 take as long to compile, and are tested elsewhere
    assert off(logits, Pipeline(rounded(reference, scheme, tmp_path)).run(ids)) < TOLERANCE


@pytest.mark.parametrize("variant", ["llama, whole blocks", "qwen 2", "qwen 3"])
def test_layers_of_one_shape_are_one_call(make_reference: MakeReference, variant: str) -> None:
    weights = make_reference(variant).weights(scheme="int4")

    assert len(weights.runs) == 1
    assert not isinstance(weights.runs[0], LayerRun)


@every_scheme_and_variant
def test_a_stage_holds_what_was_planned_with(
    make_reference: MakeReference, variant: str, scheme: Scheme
) -> None:
    reference = make_reference(variant)
    config = reference.config
    tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)

    assert reference.weights(embedding=True, head=True, scheme=scheme).nbytes == weight_bytes(
        config, tensors, scheme
    )


def test_projections_that_would_share_a_block_stay_apart(make_reference: MakeReference) -> None:
    reference = make_reference("llama, one key head, tied, odd")
    ids = reference.prompt(TOKENS)

    weights = reference.weights(scheme="int8")

    assert isinstance(weights.blocks[0].mixer_matrices[0], JoinedLinear)
    logits = Pipeline(reference, [], "int8").run(ids)
    assert off(logits, reference.logits(ids)) < TOLERANCE


def test_a_tied_head_shares_its_packed_rows(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    assert reference.config.tie_word_embeddings

    weights = reference.weights(embedding=True, head=True, scheme="int4")

    assert weights.is_tied
    assert isinstance(weights.lm_head, PackedLinear)
    assert weights.embedding is not None
    larger = reference.weights(embedding=True, head=True, scheme="int8")
    assert weights.nbytes < larger.nbytes


@pytest.mark.parametrize("scheme", ["f32", "int8"])
def test_a_cache_of_8_bits_changes_little(make_reference: MakeReference, scheme: Scheme) -> None:
    reference = make_reference("llama, whole blocks")
    ids, sizes = reference.prompt(TOKENS), (20, 1, 1, 1, 1)

    full = Pipeline(reference, [2], scheme).run_in_pieces(ids, sizes)
    small = Pipeline(reference, [2], scheme, cache="int8").run_in_pieces(ids, sizes)

    assert 0 < off(small, full) < 0.05
