"""How a stage is put together while its weights are read; `test_weights.py` has what comes of it."""

from collections.abc import Callable
from contextlib import contextmanager
from threading import Lock

import pytest
import torch
from model_folders import CONFIG
from tiny_models import Reference

from potluck.engine.builder import StageWeights, _Builder
from potluck.engine.stage import Stage
from potluck.engine.targets import Target, TensorTarget
from potluck.engine.weights import random_weights
from potluck.model.caches import session_bytes
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint

MakeReference = Callable[..., Reference]


class Filling:
    """Fills nothing; notes what is waited for."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def __call__(self, targets: list[tuple[str, Target]]) -> Callable[[], None]:
        self.begun += 1

        def wait() -> None:
            self.ended += 1

        return wait


@pytest.mark.parametrize(("kind", "under_way"), [("cpu", 4), ("cuda", 1), ("mps", 0)])
def test_as_many_layers_are_filled_at_a_time_as_a_device_allows(
    llama: Reference, kind: str, under_way: int
) -> None:
    """Metal allows none beside the thread that makes and places them."""
    filling = Filling()
    device = torch.device(kind, 0) if kind != "cpu" else torch.device(kind)
    builder = _Builder(llama.config, "f32", device, torch.float32, 0, filling)

    for _ in range(6):
        with builder.filling():
            assert filling.begun - filling.ended <= under_way

    assert filling.begun - filling.ended == under_way
    builder.finish()
    assert filling.ended == 6


def test_those_who_fill_take_turns_at_metal(llama: Reference) -> None:
    builder = _Builder(
        llama.config, "f32", torch.device("mps", 0), torch.float32, 0, lambda _: lambda: None
    )

    builder._filled("norm", torch.empty(3))
    builder._filled("weight", torch.empty(3, 4))

    turns = {target._turns for _, target in builder._targets if isinstance(target, TensorTarget)}
    assert len(turns) == 1
    assert isinstance(turns.pop(), type(Lock()))


def test_a_tensor_is_written_in_turns() -> None:
    log: list[str] = []
    tensor = torch.zeros(2, 3)

    @contextmanager
    def turn():
        log.append(f"before {tensor.sum().item():g}")
        yield
        log.append(f"after {tensor.sum().item():g}")

    TensorTarget(tensor, turn()).fill(0, torch.ones(6))

    assert log == ["before 0", "after 6"]


def test_a_family_beyond_f16_is_computed_and_cached_in_f32_where_there_is_no_bf16(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.engine.device._computes", lambda *_, **__: False)

    for variant, dtype in (("llama", torch.float16), ("gemma 2", torch.float32)):
        weights = make_reference(variant).stage(0, 1, scheme="bf16").weights
        assert (weights.dtype, weights.cache_dtype) == (dtype, dtype)
        footprint = stage_footprint(
            weights.config,
            range(1),
            embedding=weights.embedding is not None,
            head=weights.lm_head is not None,
            scheme="bf16",
            context=64,
            is_wide=dtype == torch.float32,
        )
        assert weights.nbytes == footprint.weights
        stage = Stage(weights, context=64, cache_budget=1 << 20)
        assert session_bytes(stage.caches, 64) == footprint.cache


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
