"""A model with several residual streams passes all of them on, and its sizes are bounded."""

from typing import Any

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.model.tensor_formats import tensor_format
from potluck.plan.shape import shape_of

FLASH = SHAPES["qwen3.8-flash-next"]
CONFIG = ModelConfig.from_dict(FLASH)
WIDTH = 4 * 2560


def test_a_link_is_planned_with_all_streams() -> None:
    assert CONFIG.width == WIDTH
    assert shape_of(CONFIG, "bf16", context=64).hidden_bytes == 2 * WIDTH


def test_tensors_of_a_layer_have_the_names_and_shapes_of_the_files() -> None:
    tensors = CONFIG.layer_tensors(0)

    for block in ("attn", "mlp"):
        prefix = f"model.layers.0.{block}_hyper_connection."
        assert {
            name.removeprefix(prefix): shape
            for name, shape in tensors.items()
            if name.startswith(prefix)
        } == {
            "hc_norm.weight": (WIDTH,),
            "input_mix_weight_down.weight": (320, WIDTH),
            "input_mix_weight_up.weight": (WIDTH, 320),
            "block_inject_weight.weight": (4, WIDTH),
        }
    assert not any("layernorm" in name for name in tensors)


def test_the_head_reads_a_mixture_of_the_streams_in_place_of_a_normed_one() -> None:
    prefix = "model.hyper_connection_mixer."
    names = {name.removeprefix(prefix) for name in CONFIG.head_tensors()}

    assert names == {
        "hc_norm.weight",
        "input_mix_weight_down.weight",
        "input_mix_weight_up.weight",
        "lm_head.weight",
    }


def test_what_says_how_much_each_stream_gets_stays_f32() -> None:
    tensors = CONFIG.layer_tensors(0)
    prefix = "model.layers.0.mlp_hyper_connection."

    def held(name: str) -> str:
        name = f"{prefix}{name}.weight"
        return tensor_format(CONFIG, name, tensors[name], "int4").dtype

    assert held("block_inject_weight") == "F32"
    assert held("input_mix_weight_down") != "F32"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hc_count": 1}, "hc_count"),
        ({"hc_count": 17}, "hc_count"),
        ({"hc_lowrank": 0}, "hc_lowrank"),
        ({"hc_lowrank": 1 << 20}, "hc_lowrank"),
        ({"hidden_size": 1 << 15, "hc_count": 4}, "hc_count"),
    ],
)
def test_sizes_out_of_bounds_are_refused_with_their_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        ModelConfig.from_dict({**FLASH, **changes})
