"""What goes along behind hidden states, and which layers take keys and values of earlier ones."""

from collections.abc import Mapping
from typing import Any

import pytest
from config_layers import attention

from potluck.errors import InvalidConfigError
from potluck.model.caches import WINDOW_SLACK
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint
from potluck.model.layers import DenseSpec
from potluck.model.mixing.carried import cache_owners
from potluck.model.schemes import Cache
from potluck.model.tensor_formats import table_bytes, tensor_bytes
from potluck.plan.shape import shape_of

# Of the size of Gemma 4 E2B
SMALL: Mapping[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
}


def read(**changes: object) -> ModelConfig:
    return ModelConfig.from_dict({**SMALL, **changes})


def test_the_last_layers_take_keys_of_the_last_one_of_their_kind() -> None:
    config = read()
    mixers = [attention(layer.mixer) for layer in config.layers]

    assert [layer for layer, one in enumerate(mixers) if one.gives is not None] == [13, 14]
    assert all((one.takes is None) == (layer < 15) for layer, one in enumerate(mixers))
    for one in mixers[15:]:
        giving = mixers[14 if one.window is None else 13]
        assert (one.takes, one.kv_size, one.window) == (giving.gives, giving.kv_size, giving.window)
        assert one.qkv.parts == ("self_attn.q_proj",)
        assert list(one.qk_norms) == ["self_attn.q_norm.weight"]


def owners(layers: range, number_bytes: int = 2) -> tuple[int, ...]:
    config = read()
    found = cache_owners([config.layers[layer].mixer for layer in layers], number_bytes)
    return tuple(layers[owner] for owner in found)


def test_layers_that_take_keys_share_the_cache_of_the_layer_that_gives_them() -> None:
    taking = [14 if layer % 5 == 4 else 13 for layer in range(15, 35)]

    assert owners(range(35)) == (*range(15), *taking)


def test_behind_a_cut_the_first_layer_that_takes_keys_has_the_cache() -> None:
    assert owners(range(14, 35))[:7] == (14, 15, 15, 15, 15, 14, 15)
    assert owners(range(20, 30)) == (20, 20, 20, 20, 24, 20, 20, 20, 20, 24)


def test_integers_are_shared_only_by_layers_that_quantise_the_same() -> None:
    assert owners(range(13, 21), 1) == (13, 14, 15, 15, 15, 15, 19, 15)


def test_a_stage_is_planned_with_a_cache_for_each_15_of_35_layers() -> None:
    config, rows = read(), 512 + WINDOW_SLACK
    window, full = (2 * 2 * size * count for size, count in ((256, rows), (512, 32768)))

    assert stage_cache(config, range(35), 32768) == 12 * window + 3 * full
    assert stage_cache(config, range(15, 35), 32768) == window + full


@pytest.mark.parametrize("cache", ["full", "int8"])
@pytest.mark.parametrize("cut", [0, 10, 14, 15, 18, 22])
def test_no_plan_counts_less_than_a_stage_caches(cut: int, cache: Cache) -> None:
    config = read()
    shape = shape_of(config, "int4", context=4096, cache=cache)

    for layers in (range(cut), range(cut, 35)):
        planned = sum(shape.cache_bytes[shape.layers[layer]] for layer in layers)
        planned += shape.later_cache_bytes if layers.start else 0
        assert planned >= stage_cache(config, layers, 4096, cache)


def stage_cache(config: ModelConfig, layers: range, context: int, cache: Cache = "full") -> int:
    found = stage_footprint(
        config, layers, embedding=False, head=False, scheme="int4", context=context, cache=cache
    )
    return found.cache


def test_hidden_states_an_embedding_and_keys_of_both_kinds_go_along() -> None:
    config = read()
    carried = config.carried

    assert carried is not None
    assert config.width == carried.width == 1536 + 1536 + 2 * 256 + 2 * 512
    assert (carried.place(0), carried.place(1)) == (slice(3072, 3584), slice(3584, 4608))
    assert config.needs_ids(range(34, 35))
    alone = read(num_kv_shared_layers=0)
    assert alone.width == 2 * 1536
    nothing = read(num_kv_shared_layers=0, hidden_size_per_layer_input=0)
    assert (nothing.width, nothing.carried, nothing.needs_ids(range(35))) == (1536, None, False)


def test_rows_of_pictures_have_the_embeddings_of_the_padding_token() -> None:
    assert read(pad_token_id=262143).picture_id == 262143
    assert read().picture_id == 0
    assert read(hidden_size_per_layer_input=0).picture_id is None


def test_an_mlp_beside_taken_keys_may_be_twice_as_large() -> None:
    sizes: list[int] = []
    for layer in (14, 15):
        mlp = read().layers[layer].feed_forward
        assert isinstance(mlp, DenseSpec)
        sizes.append(mlp.down.width)

    assert sizes == [6144, 12288]


def test_the_table_takes_the_disk_and_no_memory() -> None:
    config = read()
    tensors = config.stage_tensors(range(20, 35), embedding=False, head=False)
    name = "model.embed_tokens_per_layer.weight"

    assert tensors[name] == (262144, 35 * 256)
    assert table_bytes(tensors) == 2 * 262144 * 35 * 256
    assert tensor_bytes(config, name, tensors[name], "int4") == 0
    assert tensors["model.layers.34.per_layer_model_projection.weight"] == (256, 1536)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_shared_layers", 31),  # which leaves no layer that sees all
        ("num_kv_shared_layers", 35),
        ("vocab_size_per_layer_input", 1000),
        ("pad_token_id", 262144),  # a row that the table lacks
        ("pad_token_id", -1),
        ("hidden_size_per_layer_input", -1),
        ("hidden_size_per_layer_input", 60000),
    ],
)
def test_what_contradicts_itself_is_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        read(**{field: value})
