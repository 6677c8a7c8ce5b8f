"""A profile is measured, of the asked shape, within its bounds."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from seeing_models import make_seeing_model
from tiny_models import CPU, Reference

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.loading.weights import random_weights
from potluck.engine.profile import (
    BUDGET_S,
    SCATTERED_SET,
    WORKING_SET,
    _time_tower,
    profile_layers,
    sample_layers,
)
from potluck.errors import OutOfMemoryError
from potluck.model.config import ModelConfig
from potluck.model.footprint import working_bytes
from potluck.model.layers import LayerKind
from potluck.model.measured import CACHED, LONG_CACHED, cached_tokens, deep_tokens
from potluck.model.shapes.table import SHAPES
from potluck.model.tensor_formats import weight_bytes

GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 8192,
}


def test_every_figure_is_measured_and_a_chunk_costs_more_than_a_token(llama: Reference) -> None:
    profile = profile_layers(llama.config, CPU, "f32", chunk=256, memory=1 << 24, budget_s=0.02)

    (times,) = profile.kinds.values()
    assert times.decode_ms > 0
    assert profile.head_ms > 0
    assert times.prefill_ms > times.decode_ms
    assert min(times.deep_decode_ms, times.deep_prefill_ms) > 0
    assert profile.deep == deep_tokens(llama.config)


@pytest.mark.parametrize("variant", ["qwen 3", "gemma 3", "gemma 4, without a tower"])
def test_a_tower_is_measured_by_a_small_picture(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_seeing_model(variant, tmp_path).reference.config
    assert config.tower is not None
    took = iter((3.0, 5.0))  # ms with one layer, if there are any, and with two
    rows: list[int] = []

    def time_once(read: Callable[[], torch.Tensor], *_: object) -> float:
        rows.append(read().shape[0])
        return next(took)

    monkeypatch.setattr("potluck.engine.profile._time", time_once)

    whole_ms = 3.0 + 2.0 * max(config.tower.layers - 1, 0)
    large = config.tower.rows_of_picture
    measured = _time_tower(config, CPU, "f32", 0.01)

    assert len(set(rows)) == 1
    assert measured == pytest.approx(whole_ms * large / rows[0])


@pytest.mark.slow
def test_a_bigger_layer_takes_longer() -> None:
    def decode_ms(hidden: int) -> float:
        config = ModelConfig.from_dict(
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": 100,
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            }
        )
        profile = profile_layers(config, CPU, "f32", chunk=8, memory=1 << 28, budget_s=0.05)
        (times,) = profile.kinds.values()
        return times.decode_ms

    assert decode_ms(1024) > 2 * decode_ms(64)  # 256 times the weights


def test_every_kind_of_layer_is_measured_by_itself() -> None:
    config = ModelConfig.from_dict(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 64,
            "head_dim": 16,
            "num_attention_heads": 4,
            "intermediate_size": 16384,
            "num_hidden_layers": 4,
            "mlp_only_layers": [0],
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 8,
        }
    )

    profile = profile_layers(config, CPU, "f32", chunk=8, memory=1 << 28, budget_s=0.05)

    dense, mixture = dict.fromkeys(config.layer_kinds)
    assert not dense.has_experts
    assert list(profile.kinds) == [dense, mixture]
    # 12 MB of weights, against the few kilobytes of one small expert.
    assert profile.kinds[dense].decode_ms > 2 * profile.kinds[mixture].decode_ms


def test_a_profile_takes_about_the_time_it_was_given(llama: Reference) -> None:
    start = time.perf_counter()

    profile_layers(llama.config, CPU, "f32", chunk=16, memory=1 << 24, budget_s=0.01)

    assert time.perf_counter() - start < 5  # a bound for a busy machine, not a figure


def test_a_model_that_fits_into_a_cache_is_measured_for_an_eighth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, llama: Reference
) -> None:
    budgets: list[float] = []

    def time_(once: Callable[[], object], device: torch.device, budget_s: float) -> float:
        once()
        budgets.append(budget_s)
        return 1.0

    monkeypatch.setattr("potluck.engine.profile._time", time_)

    profile_layers(llama.config, CPU, "f32", chunk=8, memory=1 << 24)
    assert max(budgets) == BUDGET_S / 8 / 2  # of two looks

    budgets.clear()
    monkeypatch.setattr("potluck.engine.profile.WORKING_SET", 10_000)
    profile_layers(llama.config, CPU, "f32", chunk=8, memory=1 << 24)
    assert max(budgets) == BUDGET_S / 2


def test_a_layer_that_has_no_room_is_refused_with_the_numbers(llama: Reference) -> None:
    parameters = sum(math.prod(shape) for shape in llama.config.layer_tensors(0).values())

    with pytest.raises(OutOfMemoryError, match="lends 10") as caught:
        profile_layers(llama.config, CPU, "f32", chunk=1, memory=10_000)
    assert caught.value.data["needed"] == 4 * parameters


def test_a_head_that_has_no_room_is_concluded_from_a_part_of_it(llama: Reference) -> None:
    def head_ms(vocabulary: int) -> float:
        config = dataclasses.replace(llama.config, vocab_size=vocabulary)
        return profile_layers(config, CPU, "f32", chunk=1, memory=1 << 20, budget_s=0.02).head_ms

    # 2 MB and 400 MB of head, of which half a megabyte each is timed.
    assert head_ms(2 * 10**6) > 20 * head_ms(10**4)


class RecordedCache(LayerCache):
    """A cache of which a test knows how large it became."""

    made: list[tuple[int, torch.dtype]] = []  # noqa: RUF012 - a test's own

    def resize(self, rows: int, length: int) -> None:
        self.made.append((rows, self.both.dtype))
        super().resize(rows, length)


@pytest.mark.slow
def test_where_layers_see_more_and_less_a_long_conversation_is_cached_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ModelConfig.from_dict(GEMMA)
    made: list[tuple[int, torch.dtype]] = []
    monkeypatch.setattr(RecordedCache, "made", made)
    monkeypatch.setattr("potluck.engine.caches.new_cache.LayerCache", RecordedCache)

    profile = profile_layers(
        config, CPU, "int8", chunk=8, memory=1 << 28, cache="int8", budget_s=0.01
    )

    assert set(profile.kinds) == set(config.layer_kinds)
    assert set(made) == {(LONG_CACHED + 8, torch.int8)}
    assert cached_tokens(config) == (CACHED, LONG_CACHED)


def test_no_more_is_cached_than_the_model_allows(llama: Reference) -> None:
    assert cached_tokens(llama.config) == (CACHED,)
    short = ModelConfig.from_dict({**GEMMA, "max_position_embeddings": 1000})
    assert cached_tokens(short) == (CACHED, 999)


def sampled(config: ModelConfig, kind: LayerKind, memory: int) -> list[int]:
    return sample_layers(config, kind, "int4", "full", memory, chunk=256)[0]


def test_of_a_rare_kind_as_much_is_measured_as_of_any_other() -> None:
    wide = {**GEMMA, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 12}
    config = ModelConfig.from_dict(wide)
    common, rare = dict.fromkeys(config.layer_kinds)

    few, many = (sampled(config, kind, 1 << 32) for kind in (rare, common))

    assert len(few) == len(many) > len(set(few)) == 2
    assert set(few) == {layer for layer in range(12) if config.layer_kinds[layer] == rare}
    one = weight_bytes(config, config.layer_tensors(0), "int4")
    assert WORKING_SET - 2 * one < len(few) * one <= WORKING_SET + one
    assert len(sampled(config, rare, 2 * one)) == 1


def test_where_memory_is_short_fewer_tokens_are_cached_and_all_of_it_fits() -> None:
    """A layer of many key heads: 32 kB of cache for each token."""
    wide = {**GEMMA, "hidden_size": 1024, "head_dim": 256, "num_attention_heads": 32}
    config = ModelConfig.from_dict({**wide, "num_key_value_heads": 32})
    kind, one = config.layer_kinds[0], weight_bytes(config, config.layer_tensors(0), "int4")

    for megabytes, tokens in ((1000, LONG_CACHED), (300, 1024), (200, 512)):
        memory = megabytes * 10**6
        some, deep = sample_layers(config, kind, "int4", "full", memory, chunk=256)

        assert deep == tokens
        caches = 2 * 2 * 32 * 256 * (deep + 256)
        assert len(some) * (one + caches) + working_bytes(config, deep + 256) <= memory
    assert sample_layers(config, kind, "int4", "full", one, chunk=256) == ([0], CACHED)


def test_what_a_step_costs_beside_its_layers_is_no_part_of_how_much_longer_a_deep_one_takes(
    monkeypatch: pytest.MonkeyPatch, llama: Reference
) -> None:
    """Each step costs 5 ms beside its layers, of which one takes 2 ms, and 3 ms more in a long conversation."""
    config = dataclasses.replace(llama.config, max_position=LONG_CACHED + 1)
    whole = 5 + 2 * config.num_layers
    given = iter([whole, 1.0, 1.0, 5 + 2, 5 + 2 + 3] * 2)
    monkeypatch.setattr("potluck.engine.profile._time", lambda *_: next(given, 1.0))

    profile = profile_layers(config, CPU, "f32", chunk=8, memory=1 << 28)

    (times,) = profile.kinds.values()
    assert times.deep_prefill_ms - times.prefill_ms == pytest.approx(3)
    assert times.deep_decode_ms == times.decode_ms


def test_of_experts_more_is_measured_for_they_lie_scattered() -> None:
    config = ModelConfig.from_dict(SHAPES["qwen3-30b-a3b"])
    (kind,) = dict.fromkeys(config.layer_kinds)
    one = weight_bytes(config, config.layer_tensors(0), "int4")

    some = sampled(config, kind, 1 << 34)

    assert WORKING_SET < SCATTERED_SET <= len(some) * one < SCATTERED_SET + one
    assert len(sampled(config, kind, 3 * one)) == 2


def test_of_a_model_that_fits_a_cache_no_more_is_measured_than_it_has() -> None:
    config = ModelConfig.from_dict(GEMMA)
    for kind in dict.fromkeys(config.layer_kinds):
        assert len(sampled(config, kind, 1 << 32)) == config.num_layers


def test_a_layer_that_is_measured_twice_has_weights_of_its_own_each_time() -> None:
    config = ModelConfig.from_dict(GEMMA)

    weights = random_weights(
        config, [5, 5, 5], embedding=False, head=False, scheme="int4", device=CPU
    )

    memory = [part for b in weights.blocks for part in b.mixer_matrices[0].memory]
    assert len({part.data_ptr() for part in memory}) == len(memory) == 3
