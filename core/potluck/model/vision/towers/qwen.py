"""The towers of Qwen2-VL to Qwen3.6 (https://arxiv.org/abs/2409.12191, https://arxiv.org/abs/2511.21631)."""

from dataclasses import replace

from potluck.model.fields import Fields
from potluck.model.limits import MAX_LAYERS
from potluck.model.vision.spec import Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import (
    MAX_MERGE,
    MAX_PATCH,
    MAX_SIDE,
    MAX_TOWER,
    MAX_WIDTH,
    check_out,
    transformer,
)

_MAX_DEEP = 8
_MAX_RATIO = 64.0  # of an MLP's width to the tower's

QWEN_3_5 = TowerFacts(
    patches="visual.patch_embed.proj",
    frames=2,
    positions="visual.pos_embed.weight",
    is_stretched=True,
    rope="halves",
    layer="visual.blocks.{}.",
    norms=("norm1", "norm2"),
    norm_kind="layer",
    qkv=("attn.qkv",),
    output="attn.proj",
    mlp=("mlp.linear_fc1", "mlp.linear_fc2"),
    merger=Merger(
        kind="mlp",
        norm="visual.merger.norm",
        products=("visual.merger.linear_fc1", "visual.merger.linear_fc2"),
    ),
    axes="turns",
    sections=(11, 11, 10),
)
QWEN_3 = replace(
    QWEN_3_5,
    deep=Merger(
        kind="mlp",
        norm="visual.deepstack_merger_list.{}.norm",
        products=(
            "visual.deepstack_merger_list.{}.linear_fc1",
            "visual.deepstack_merger_list.{}.linear_fc2",
        ),
        norms_cell=True,
    ),
    sections=(24, 20, 20),
)
QWEN_2_5 = TowerFacts(
    patches="visual.patch_embed.proj",
    patch_bias=False,
    frames=2,
    rope="halves",
    layer="visual.blocks.{}.",
    norms=("norm1", "norm2"),
    norm_kind="rms",
    qkv=("attn.qkv",),
    output="attn.proj",
    mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    merger=Merger(
        kind="mlp",
        norm="visual.merger.ln_q",
        products=("visual.merger.mlp.0", "visual.merger.mlp.2"),
    ),
    axes="blocks",
    sections=(16, 24, 24),
)
QWEN_2 = replace(
    QWEN_2_5,
    norm_kind="layer",
    mlp=("mlp.fc1", "mlp.fc2"),
)


def read_qwen(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Qwen2.5-VL and later ones."""
    check_out(eye, "out_hidden_size", out)
    deep: tuple[int, ...] = ()
    if facts.deep is not None:
        deep = eye.integers("deepstack_visual_indexes", 0, MAX_TOWER, _MAX_DEEP)
    places = eye.integer("num_position_embeddings", 1, MAX_SIDE**2, 2304)
    patch, merge = eye.integer("patch_size", 1, MAX_PATCH), _merge(eye)
    is_windowed = "fullatt_block_indexes" in eye
    window = eye.integer("window_size", patch * merge, 1 << 14, 112) if is_windowed else 0
    sizes = transformer(eye, layers="depth", heads="num_heads")
    return TowerSpec(
        facts=facts,
        **sizes,
        out=out,
        middle=(sizes["width"] * merge * merge,),
        patch=patch,
        merge=merge,
        side=0 if facts.positions is None else int(places**0.5),
        window=window // merge // patch,
        whole_layers=frozenset(eye.integers("fullatt_block_indexes", 0, MAX_LAYERS, MAX_TOWER)),
        deep_layers=deep,
        activation=eye.text("hidden_act", "silu" if is_windowed else "gelu_pytorch_tanh"),
    )


def read_qwen_2(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Qwen2-VL, whose config calls the decoder's hidden size its own."""
    check_out(eye, "hidden_size", out)
    width, merge = eye.integer("embed_dim", 4, MAX_WIDTH, 1280), _merge(eye)
    inner = int(width * eye.number("mlp_ratio", 0.0, _MAX_RATIO, 4.0))
    usual: dict[str, object] = {"depth": 32, "num_heads": 16, "embed_dim": width}
    sizes = eye.over(usual).having({"intermediate_size": inner})
    return TowerSpec(
        facts=facts,
        **transformer(sizes, width="embed_dim", layers="depth", heads="num_heads"),
        out=out,
        middle=(width * merge * merge,),
        patch=eye.integer("patch_size", 1, MAX_PATCH, 14),
        merge=merge,
        activation=eye.text("hidden_act", "quick_gelu"),
    )


def _merge(eye: Fields) -> int:
    return eye.integer("spatial_merge_size", 1, MAX_MERGE, 2)
