"""Ranks' shares of a layer are whole blocks, in proportion, and together they are the layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from potluck.model.config import ModelConfig
from potluck.model.footprint import Footprint, stage_footprint
from potluck.model.layers import DenseSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mixers import AttentionSpec, Mixer
from potluck.model.shapes.table import SHAPES
from potluck.model.shares import Share, TensorSlice, layer_slices, rank_config, share_layer

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
}


def llama(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(LLAMA | changes)


def shares(*parts: int) -> list[Share]:
    return [Share(rank=rank, parts=parts) for rank in range(len(parts))]


def heads(config: ModelConfig, *parts: int) -> list[tuple[int, int]]:
    """Heads of queries and of keys of each rank."""
    found: list[tuple[int, int]] = []
    for share in shares(*parts):
        mixer = share_layer(config.layers[0], share, "int4").spec.mixer
        assert isinstance(mixer, AttentionSpec)
        found.append((mixer.heads, mixer.kv_heads))
    return found


def rows(config: ModelConfig, *parts: int) -> list[int]:
    """Rows of the MLP that each rank has."""
    found: list[int] = []
    for share in shares(*parts):
        mlp = share_layer(config.layers[0], share, "int4").spec.feed_forward
        assert isinstance(mlp, DenseSpec)
        found.append(mlp.down.width)
    return found


def test_equal_ranks_have_equal_parts() -> None:
    assert heads(llama(), 1, 1) == [(4, 1), (4, 1)]
    assert rows(llama(), 1, 1) == [1408, 1408]


def test_a_rank_twice_as_fast_has_twice_as_much() -> None:
    config = llama(num_key_value_heads=8, intermediate_size=3072)

    assert heads(config, 2, 1, 1) == [(4, 4), (2, 2), (2, 2)]
    assert rows(config, 2, 1, 1) == [1536, 768, 768]


def test_ranks_beyond_the_key_heads_share_one() -> None:
    assert heads(llama(), 1, 1, 1, 1) == [(2, 1)] * 4


def test_heads_that_do_not_divide_give_unequal_parts() -> None:
    assert heads(llama(), 1, 1, 1) in ([(4, 1), (2, 1), (2, 1)], [(2, 1), (2, 1), (4, 1)])
    assert rows(llama(), 1, 1, 1) == [928, 960, 928]


def test_parts_of_packed_matrices_are_whole_blocks() -> None:
    config = llama(head_dim=24)  # four heads are whole blocks, and two heads of keys are none

    assert share_layer(config.layers[0], Share(rank=0, parts=(1, 1)), "int4").spec.mixer == (
        config.layers[0].mixer
    )
    plain = share_layer(config.layers[0], Share(rank=0, parts=(1, 1)), "bf16").spec
    assert plain.sums_mixer


def test_what_is_too_small_for_so_many_ranks_is_whole_on_each() -> None:
    config = llama(intermediate_size=96)

    for share in shares(1, 1, 1, 1):
        part = share_layer(config.layers[0], share, "int4").spec
        assert part.feed_forward == config.layers[0].feed_forward
        assert not part.sums_feed_forward
        assert part.sums_mixer


def test_a_group_of_one_has_the_model_itself() -> None:
    assert rank_config(llama(), Share(rank=0, parts=(3,)), "int4") == llama()
    assert rank_config(llama(), None, "int4") == llama()


@pytest.mark.parametrize("parts", [(1, 1), (5, 2, 3)])
@pytest.mark.parametrize("shape", ["llama-8b", "gpt-oss-20b"])
def test_slices_of_all_ranks_together_are_the_tensors(shape: str, parts: Sequence[int]) -> None:
    """Each row or column is of some rank, and a rank's tensors have the sizes of its slices."""
    config = ModelConfig.from_dict(SHAPES[shape])
    whole = {
        name: size
        for name, size in config.layer_tensors(0).items()
        if ".experts." not in name or ".experts.0." in name
    }
    covered: dict[tuple[str, int], set[int]] = {}
    for share in shares(*parts):
        own = rank_config(config, share, "int4").layer_tensors(0)
        slices = layer_slices(config, 0, share, "int4")
        for name, size in whole.items():
            part = slices.get(name)
            assert own[name] == (size if part is None else part.shape(size))
            if part is not None and part.ranges:
                numbers = covered.setdefault((name, 0 if part.axis == "rows" else -1), set())
                for first, last in part.ranges:
                    numbers |= set(range(first, last))

    assert len(covered) > 5
    for (name, axis), numbers in covered.items():
        assert numbers == set(range(whole[name][axis]))


def test_a_rank_takes_its_part_of_weights_and_cache() -> None:
    config = ModelConfig.from_dict(SHAPES["llama-8b"])

    def footprint(of: ModelConfig) -> Footprint:
        return stage_footprint(
            of, range(4), embedding=False, head=False, scheme="int4", context=4096
        )

    whole = footprint(config)
    first, second = (footprint(rank_config(config, share, "int4")) for share in shares(3, 1))

    assert first.cache + second.cache == whole.cache
    assert first.cache == 3 * second.cache
    assert whole.weights < first.weights + second.weights < 1.001 * whole.weights  # norms twice
    assert first.weights == pytest.approx(0.75 * whole.weights, rel=0.01)


def test_heads_of_latents_and_of_delta_nets_are_shared_out() -> None:
    for shape, heads in (("deepseek-v2-lite", 16), ("qwen3.6-27b", 48)):
        config = ModelConfig.from_dict(SHAPES[shape])
        parts = [share_layer(config.layers[0], one, "int4").spec for one in shares(1, 1)]
        assert all(part.sums_mixer for part in parts)
        assert sum(_heads(part.mixer) for part in parts) == heads == _heads(config.layers[0].mixer)


def _heads(mixer: Mixer | None) -> int:
    assert isinstance(mixer, LatentSpec | DeltaNetSpec)
    return mixer.heads if isinstance(mixer, LatentSpec) else mixer.value_heads


def test_what_files_hold_in_tiles_is_cut_in_each_of_them() -> None:
    """llama.cpp has value head i with key head i modulo the number of key heads."""
    config = ModelConfig.from_dict(SHAPES["qwen3.6-27b"])
    plain = config.layers[0].mixer
    assert isinstance(plain, DeltaNetSpec)
    layer = replace(config.layers[0], mixer=replace(plain, has_tiled_heads=True))

    slices = share_layer(layer, Share(rank=1, parts=(1, 1)), "int4").slices

    keys, tiles = plain.key_heads, plain.group
    expected = tuple((tile * keys + keys // 2, (tile + 1) * keys) for tile in range(tiles))
    assert slices["linear_attn.A_log"].ranges == expected


def test_a_slice_has_the_rows_or_columns_of_its_ranges() -> None:
    ranges = (0, 32), (64, 96)

    assert TensorSlice(axis="columns", ranges=ranges).shape((7, 128)) == (7, 64)
    assert TensorSlice(ranges=ranges).shape((128, 7)) == (64, 7)


@pytest.mark.parametrize(
    ("rank", "parts"), [(2, (1, 1)), (-1, (1, 1)), (0, ()), (0, (1, 0)), (0, (1,) * 17)]
)
def test_a_share_that_no_group_has_is_refused(rank: int, parts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="group"):
        Share(rank=rank, parts=parts)
