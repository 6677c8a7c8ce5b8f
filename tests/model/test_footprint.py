"""What a stage takes is known, and refused, before it is loaded."""

from dataclasses import replace
from math import prod

import pytest
from config_layers import row_bytes, with_mixers

from potluck.errors import OutOfMemoryError, format_bytes
from potluck.model.cache_rows import State
from potluck.model.caches import MAX_CHUNK_TOKENS, RecurrentCache
from potluck.model.config import ModelConfig
from potluck.model.footprint import (
    Footprint,
    pair_bytes,
    stage_footprint,
    usable_memory,
    working_bytes,
)
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.schemes import Cache
from potluck.model.tensor_formats import weight_bytes
from potluck.plan.shape import shape_of

CACHES: tuple[Cache, Cache] = ("full", "int8")
FIELDS: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "vocab_size": 100,
}
CONFIG = ModelConfig.from_dict(FIELDS)


def changed(**fields: object) -> ModelConfig:
    return ModelConfig.from_dict(FIELDS | fields)


def test_a_footprint_counts_weights_and_the_cache_of_its_layers() -> None:
    one = stage_footprint(CONFIG, [2], embedding=False, head=False, scheme="int8", context=100)
    two = stage_footprint(CONFIG, [2, 3], embedding=False, head=True, scheme="int8", context=100)

    assert one.weights == weight_bytes(CONFIG, CONFIG.layer_tensors(2), "int8")
    assert one.cache == 2 * 2 * 16 * 2 * 100  # keys and values, heads, their size, f16, tokens
    assert two.cache == 2 * one.cache
    assert two.weights > 2 * one.weights
    assert one.total == one.weights + one.cache + one.working


def test_a_layer_with_a_window_counts_what_it_takes() -> None:
    """The layers of Gemma 3 12B: eight that see all tokens, forty with a window of 1024."""
    gemma = ModelConfig.from_dict(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "num_hidden_layers": 48,
            "vocab_size": 262_208,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
        }
    )

    def cache_of(layers: range, context: int) -> int:
        return stage_footprint(
            gemma, layers, embedding=False, head=False, scheme="bf16", context=context
        ).cache

    row = 2 * 8 * 256 * 2  # keys and values, heads, their size, bf16
    assert 48 * 32_768 * row == 12_884_901_888  # with all tokens in all layers
    assert cache_of(range(48), 32_768) == (8 * 32_768 + 40 * 2048) * row == 2_818_572_288
    assert cache_of(range(5), 1 << 20) == cache_of(range(5), 2048)
    assert cache_of(range(48), 1000) == 48 * 1000 * row  # a short context is not charged for more


def test_a_layer_with_a_state_counts_it_and_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = RecurrentCache(row=State(shapes=((4, 16, 16), (96, 3))), checkpoints=2)
    monkeypatch.setattr(AttentionSpec, "cache", lambda *_: state)

    short, long = (
        stage_footprint(CONFIG, [0, 1], embedding=False, head=False, scheme="int4", context=context)
        for context in (1, 100_000)
    )

    assert short.cache == long.cache == 2 * 3 * 4 * (4 * 16 * 16 + 96 * 3)


def test_each_end_of_the_model_counts_where_it_is() -> None:
    first, last = (
        stage_footprint(CONFIG, [], embedding=not head, head=head, scheme="f32", context=100)
        for head in (False, True)
    )

    assert first.weights == 4 * 100 * 64
    assert last.weights == first.weights + 4 * 64  # the norm before the head
    assert first.cache == last.cache == 0


def test_what_is_computed_with_is_bounded_by_the_chunk() -> None:
    per_token = working_bytes(CONFIG, 100_001) - working_bytes(CONFIG, 100_000)
    assert per_token == row_bytes(CONFIG, 4) + 5 * MAX_CHUNK_TOKENS


def test_only_the_stage_that_reads_pictures_has_memory_for_its_tower() -> None:
    eye = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
           "patch_size": 14}  # fmt: skip
    sees = ModelConfig.from_dict(
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": FIELDS | {"architectures": None, "model_type": "mistral"},
            "vision_config": eye,
        }
    )
    assert sees.tower is not None
    first, last = (
        stage_footprint(sees, [2], embedding=is_first, head=not is_first, scheme="f32", context=100)
        for is_first in (True, False)
    )

    assert last.working == working_bytes(CONFIG, 100)
    # Of 2,048 cells: what attention makes of their patches, and the rows of kept pictures.
    assert first.working > last.working + 4 * 2048 * 4 * 14 * 64 + (64 << 20)
    shape = shape_of(sees, "f32", context=100)
    assert shape.picture_bytes == first.working - last.working
    own, middle = (
        shape.stage_memory(range(1), first=is_first, last=False) for is_first in (True, False)
    )
    assert own - middle == shape.embedding_bytes + shape.picture_bytes
    weights, layer = (
        sum(prod(one) for one in tensors.values())
        for tensors in (sees.tower_tensors(), sees.layer_tensors(0))
    )
    assert shape.picture_tokens == weights * 2048 * sees.tower.cell / layer
    assert shape_of(CONFIG, "f32", context=100).picture_tokens == 0


def test_of_a_layers_halves_the_larger_one_counts() -> None:
    wide = changed(intermediate_size=100_000)
    logits = 4 * 4 * wide.vocab_size
    kept = 4 * 512 * 64  # hidden states of the last step

    assert working_bytes(wide, 512) == 4 * 512 * (4 * 64 + 3 * 100_000) + kept + logits
    assert working_bytes(wide, 1_000_000) > working_bytes(wide, 512)
    assert working_bytes(wide, 1024) == working_bytes(wide, 512)
    assert working_bytes(wide, 10) == 4 * 10 * (5 * 64 + 3 * 100_000) + logits


def test_attention_holds_queries_keys_and_values_of_a_chunk_beside_what_is_cached() -> None:
    """The chunk's in f32: with each query what it attends to, with each key its value."""
    narrow, context = changed(intermediate_size=1), 2000
    queries = changed(intermediate_size=1, num_attention_heads=8)
    keys = changed(intermediate_size=1, num_key_value_heads=4)

    plain = working_bytes(narrow, context)
    assert working_bytes(queries, context) - plain == 4 * 512 * 2 * (4 * 16)
    assert working_bytes(keys, context) - plain == 4 * (512 + context) * 2 * (2 * 16)


def test_of_experts_all_that_a_token_is_sent_to_count() -> None:
    def read(size: int) -> ModelConfig:
        experts = {"num_local_experts": 8, "num_experts_per_tok": 3}
        return changed(architectures=["MixtralForCausalLM"], intermediate_size=size, **experts)

    mixture = read(1000)
    first_dense = replace(
        mixture, layers=(changed(intermediate_size=5000).layers[0], *mixture.layers[1:])
    )
    for config, counts in ((mixture, 3000), (read(5000), 15_000), (first_dense, 5000)):
        plain = changed(intermediate_size=counts)
        assert working_bytes(config, 512) == working_bytes(plain, 512)


def test_narrow_experts_count_by_the_numbers_that_they_read() -> None:
    def read(hidden: int, narrow: int | None) -> int:
        config = changed(
            architectures=["NemotronHForCausalLM"],
            hybrid_override_pattern="E",
            hidden_size=hidden,
            n_routed_experts=8,
            num_experts_per_tok=8,
            moe_intermediate_size=8,
            moe_shared_expert_intermediate_size=8,
            moe_latent_size=narrow,
        )
        return working_bytes(config, 512)

    pairs, around = (
        512 * 8,
        4 * 512 * 2,
    )  # what a matrix makes for them of the tokens, and their sum
    more = pairs * (pair_bytes(64, 8) - pair_bytes(32, 8)) + around * 32
    assert read(1024, 64) - read(1024, 32) == more
    more = pairs * (pair_bytes(1024, 8) - pair_bytes(64, 8)) - around * 64
    assert read(1024, None) - read(1024, 64) == more


def test_capped_scores_are_held_one_by_one() -> None:
    """The peak that torch's profiler shows in a layer of Gemma 2 9B, half as wide, int8 cache: 440 MB."""
    sizes = {
        "hidden_size": 1792,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 1000,
    }
    gemma = changed(intermediate_size=7168, **sizes)

    capped = working_bytes(with_mixers(gemma, softcap=50.0), 8192)

    assert capped - working_bytes(gemma, 8192) == 10 * 16 * 256 * 8192  # heads, queries, keys
    assert 440e6 < capped < 1.25 * 440e6
    narrow = changed(intermediate_size=1, **sizes)  # attention is the larger half of any context
    short = working_bytes(with_mixers(narrow, softcap=50.0), 100)
    assert short - working_bytes(narrow, 100) == 10 * 16 * 100 * 100


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    footprint = stage_footprint(
        CONFIG, range(4), embedding=True, head=True, scheme="f32", context=4096
    )
    footprint.check(footprint.total, "Laptop", 4096)
    with pytest.raises(
        OutOfMemoryError, match=r"Laptop lends .* of cache for 4,096 tokens"
    ) as raised:
        footprint.check(footprint.total - 1, "Laptop", 4096)
    assert raised.value.data == {"needed": footprint.total, "available": footprint.total - 1}


def test_a_refusal_says_what_of_it_is_weights_cache_and_room_to_compute() -> None:
    footprint = Footprint(weights=3_000_000_000, cache=200_000_000, working=50_000_000)

    with pytest.raises(OutOfMemoryError) as raised:
        footprint.check(1_000_000_000, "Laptop", 4096)

    for nbytes, of in (
        (1_000_000_000, ", and its part of the model needs"),
        (3_250_000_000, ": "),
        (3_000_000_000, " of weights"),
        (200_000_000, " of cache for 4,096 tokens"),
        (50_000_000, " to compute with"),
    ):
        assert format_bytes(nbytes) + of in raised.value.message


def test_a_cache_of_8_bits_takes_little_more_than_half() -> None:
    full, small = (
        stage_footprint(
            CONFIG, [1], embedding=False, head=False, scheme="int4", context=100, cache=cache
        ).cache
        for cache in CACHES
    )
    assert full == 2 * 2 * 16 * 2 * 100
    assert small == 2 * 2 * (16 + 4) * 100  # a scale of 4 bytes for each head


def test_packed_weights_take_more_on_a_gpu() -> None:
    assert usable_memory(1000, "cpu", "int4") == usable_memory(1000, "cuda", "bf16") == 1000
    assert usable_memory(1000, "cuda", "int4") == 850
