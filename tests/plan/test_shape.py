import math
from dataclasses import replace

import pytest
from config_layers import attention, row_bytes, with_each_mixer
from model_folders import CONFIG
from seeing_variants import gemma_4_config

from potluck.model.cache_rows import State
from potluck.model.caches import WINDOW_SLACK, RecurrentCache
from potluck.model.config import ModelConfig
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.shapes.table import SHAPES
from potluck.model.tensor_formats import weight_bytes
from potluck.plan.shape import kinds_of, numbered_kinds, read_bytes, shape_of

SHAPE = ModelConfig.from_dict(CONFIG)
MIXED = ModelConfig.from_dict(
    {
        **CONFIG,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }
)
WITH_TABLE = gemma_4_config(hidden_size_per_layer_input=8, vocab_size_per_layer_input=4096)


def test_a_shape_counts_the_bytes_of_the_scheme() -> None:
    full, half = shape_of(SHAPE, "f32", context=64), shape_of(SHAPE, "bf16", context=64)

    shapes = SHAPE.layer_tensors(0).values()
    layer = sum(math.prod(shape) for shape in shapes)
    norms = sum(math.prod(shape) for shape in shapes if len(shape) == 1)  # stay f32
    assert full.layers == (0,) * SHAPE.num_layers
    assert full.layer_bytes == (4 * layer,)
    assert half.layer_bytes == (2 * (layer + norms),)
    assert full.hidden_bytes == 4 * SHAPE.hidden_size
    assert full.cache_bytes == (64 * row_bytes(SHAPE, 4),)
    assert half.cache_bytes == (64 * row_bytes(SHAPE, 2),)
    assert not full.tied


def test_a_layer_with_a_window_is_planned_with_what_its_cache_takes() -> None:
    config = with_each_mixer(
        SHAPE,
        [replace(attention(SHAPE.layers[0].mixer), window=window) for window in (100, None)]
        * (SHAPE.num_layers // 2),
    )

    shape = shape_of(config, "bf16", context=10_000)

    rows = (100 + WINDOW_SLACK, 10_000)
    assert shape.cache_bytes == tuple(count * row_bytes(SHAPE, 2) for count in rows)
    assert shape.layer_bytes[0] == shape.layer_bytes[1]


def test_a_layer_with_a_state_is_planned_with_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = RecurrentCache(row=State(shapes=((4, 16, 16),)), checkpoints=2)
    monkeypatch.setattr(AttentionSpec, "cache", lambda *_: state)

    assert shape_of(SHAPE, "bf16", context=10_000).cache_bytes == (3 * 4 * 4 * 16 * 16,)


def test_layers_of_another_size_are_another_kind() -> None:
    shape = shape_of(MIXED, "f32", context=64)

    assert shape.layers == (0, 1, 0, 1)
    assert shape.layer_bytes == tuple(
        weight_bytes(MIXED, MIXED.layer_tensors(layer), "f32") for layer in (0, 1)
    )
    assert shape.layer_bytes[1] > shape.layer_bytes[0]


def test_a_token_reads_few_experts_and_many_tokens_all() -> None:
    config = ModelConfig.from_dict(SHAPES["qwen3-30b-a3b"])
    tensors = config.layer_tensors(0)
    whole = weight_bytes(config, tensors, "int4")
    one_expert = {name: shape for name, shape in tensors.items() if ".experts.7." in name}
    one_token = whole - 120 * weight_bytes(config, one_expert, "int4")

    shape = shape_of(config, "int4", context=64)

    assert read_bytes(shape) == (one_token,)
    assert shape.reading((0,), 1) == pytest.approx(1)
    assert shape.reading((0,), 10_000) == pytest.approx(whole / one_token)
    assert 1 < shape.reading((0,), 2) < 2
    dense = shape_of(ModelConfig.from_dict(CONFIG), "int4", context=64)
    assert dense.reading((0,), 1) == dense.reading((0,), 512) == 1


@pytest.mark.parametrize("name", ["nemotron-3-nano-30b-a3b", "glm-4.5-air"])
def test_only_layers_that_have_experts_read_a_part_of_their_weights(name: str) -> None:
    config = ModelConfig.from_dict(SHAPES[name])
    assert config.experts is not None
    shape = shape_of(config, "int4", context=64)

    kinds = numbered_kinds(config)
    for kind in set(kinds):
        tensors = config.layer_tensors(kinds.index(kind))
        experts = {n: size for n, size in tensors.items() if config.is_of_expert(n)}
        others = {n: size for n, size in tensors.items() if n not in experts}
        all_experts = weight_bytes(config, experts, "int4")
        one_token = weight_bytes(config, others, "int4") + all_experts * config.experts.part
        assert shape.read_bytes((kind,)) == pytest.approx(one_token)
        assert (shape.reading((kind,), 8) > 1) == bool(experts)
        assert shape.reading((kind,), 10_000) == pytest.approx(shape.layer_bytes[kind] / one_token)
    assert len({bool(shape.expert_bytes[kind]) for kind in kinds}) == 2  # with and without
    assert shape.read_bytes(kinds) == pytest.approx(
        sum(shape.layer_bytes[kind] for kind in kinds)
        - sum(shape.expert_bytes[kind] for kind in kinds) * (1 - config.experts.part)
    )


def test_a_state_space_beside_experts_takes_several_tokens_as_a_dense_layer() -> None:
    config = ModelConfig.from_dict(SHAPES["nemotron-3-nano-30b-a3b"])
    shape = shape_of(config, "int4", context=64)

    mamba, experts = (
        shape.batch_ms((kind,), 0.2, 1.5, tokens=8, measured_tokens=128) for kind in (0, 1)
    )

    assert mamba == pytest.approx(0.2 + 7 * 1.3 / 127)
    assert experts == pytest.approx(0.2 * shape.reading((1,), 8))  # reading takes the whole chunk


def test_a_picture_is_as_much_work_as_tokens_in_what_a_layer_multiplies_with() -> None:
    plain, with_table = map(ModelConfig.from_dict, (gemma_4_config(), WITH_TABLE))
    own = sum(math.prod(shape) for shape in with_table.layers[0].tensors().values())
    tower = sum(math.prod(shape) for shape in with_table.tower_tensors().values())

    tokens = shape_of(with_table, "f32", context=64).picture_tokens

    assert with_table.tower is not None
    patches = with_table.tower.rows_of_picture * with_table.tower.cell
    norm = 8  # of the inputs, that all layers have
    assert tokens == tower * patches / (own + norm)
    assert (
        tokens < shape_of(plain, "f32", context=64).picture_tokens < 2 * tokens
    )  # the table has 20 times the numbers


def test_a_table_of_all_layers_is_counted_once_for_each_stage() -> None:
    config = ModelConfig.from_dict(WITH_TABLE)
    shape = shape_of(config, "f32", context=64)

    table = 2 * 4096 * 8 * config.num_layers
    assert shape.tables(range(config.num_layers)) == table
    assert shape.tables(range(1)) == table  # a stage has all of it on its disk
    assert shape.tables(range(0)) == 0
    assert (
        shape_of(ModelConfig.from_dict(gemma_4_config()), "f32", context=64).tables(range(2)) == 0
    )


def test_ranks_sum_hidden_states_without_what_goes_along_behind_them() -> None:
    config = ModelConfig.from_dict(WITH_TABLE)

    assert config.width > config.hidden_size
    assert shape_of(config, "f32", context=64).hidden_size == config.hidden_size


def test_a_tied_head_is_known_as_one() -> None:
    config = ModelConfig.from_dict({**CONFIG, "tie_word_embeddings": True})
    assert shape_of(config, "f32", context=64).tied


def test_kinds_are_numbered_in_the_order_of_their_first_layer() -> None:
    assert kinds_of(MIXED) == (MIXED.layer_kinds[0], MIXED.layer_kinds[1])
    assert len(kinds_of(SHAPE)) == 1
