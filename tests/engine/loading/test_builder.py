"""A stage is put together from layers; `test_weights.py` tests the weights that are loaded into it."""

from collections.abc import Callable

import pytest
import torch
from chosen_kernels import attend_unrounded
from model_folders import CONFIG
from tiny_models import Pipeline, Reference, off

from potluck.engine.layers.attention import Attention
from potluck.engine.layers.blocks import LayerRun
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.weights import random_weights
from potluck.engine.stage import Stage
from potluck.model.caches import session_bytes
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint
from potluck.model.schemes import Scheme

MakeReference = Callable[..., Reference]


@pytest.mark.parametrize("scheme", ["bf16", "f16"])
def test_a_family_beyond_f16_is_computed_and_cached_in_f32_where_there_is_no_bf16(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    monkeypatch.setattr("potluck.engine.device._computes", lambda *_, **__: False)

    for variant, dtype in (("llama", torch.float16), ("gemma 2", torch.float32)):
        weights = make_reference(variant).stage(0, 1, scheme=scheme).weights
        assert (weights.dtype, weights.cache_dtype) == (dtype, dtype)
        footprint = stage_footprint(
            weights.config,
            range(1),
            embedding=weights.embedding is not None,
            head=weights.lm_head is not None,
            scheme=scheme,
            context=64,
            is_wide=dtype == torch.float32,
        )
        assert weights.nbytes == footprint.weights
        stage = Stage(weights, context=64, cache_budget=1 << 20)
        assert session_bytes(stage.caches, 64) == footprint.cache


def test_attention_without_kernels_is_that_of_torch_also_where_weights_are_packed(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_reference("llama, whole blocks")
    ids, sizes = reference.prompt(20), (16, 1, 1, 1, 1)
    attend_unrounded(monkeypatch)
    generated = Pipeline(reference, [], "int4").run_in_pieces(ids, sizes)
    for module in ("potluck.engine.generated.attention", "potluck.engine.generated.layers"):
        monkeypatch.setattr(f"{module}.has_kernels", lambda _: False)

    pipeline = Pipeline(reference, [], "int4")

    (stage,) = pipeline.stages
    assert {type(block.mixer) for block in stage.weights.blocks} == {Attention}
    assert {type(run) for run in stage.weights.runs} == {LayerRun}
    assert off(pipeline.run_in_pieces(ids, sizes), generated) < 0.02


def weights(
    layers: range,
    *,
    embedding: bool = False,
    head: bool = False,
    is_tied: bool = False,
    kept: StageWeights | None = None,
) -> StageWeights:
    config = {**CONFIG, "num_hidden_layers": 4, "tie_word_embeddings": is_tied}
    return random_weights(
        ModelConfig.from_dict(config),
        layers,
        embedding=embedding,
        head=head,
        scheme="int8",
        device=torch.device("cpu"),
        seed=1,
        kept=kept,
    )


def test_parts_that_are_kept_are_used_as_they_are_and_the_others_are_made() -> None:
    before = weights(range(3), embedding=True)

    kept = before.keep(range(1, 4), embedding=False, head=True)
    after = weights(range(1, 4), head=True, kept=kept)

    assert list(kept.layers) == [1, 2]
    assert kept.nbytes < before.nbytes
    assert after.blocks[:2] == before.blocks[1:]
    assert after.has_all(range(1, 4), embedding=False, head=True)
    kept = after.keep(range(2, 4), embedding=False, head=True)
    assert not kept.has_all(range(2, 4), embedding=False, head=True)  # it has no runs
    assert weights(range(2, 4), head=True, kept=kept).runs
    assert after.nbytes == weights(range(1, 4), head=True).nbytes
    assert after.kernels is before.kernels
    assert after.scratch is before.scratch


def test_a_matrix_that_is_embedding_and_head_is_never_there_twice() -> None:
    first = weights(range(2), embedding=True, is_tied=True)
    both = weights(
        range(2),
        embedding=True,
        head=True,
        is_tied=True,
        kept=first.keep(range(2), embedding=True, head=True),
    )

    assert both.nbytes == weights(range(2), embedding=True, head=True, is_tied=True).nbytes
    assert both.embedding is not first.embedding
    assert both.keep(range(2), embedding=True, head=True).lm_head is both.lm_head
    last = both.keep(range(2), embedding=False, head=True)
    assert (last.embedding, last.lm_head, last.is_tied) == (None, both.lm_head, False)
