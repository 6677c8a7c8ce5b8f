"""The tower of GLM-4.1V, 4.5V and 4.6V (https://arxiv.org/abs/2507.01006)."""

from dataclasses import replace

from potluck.model.fields import Fields
from potluck.model.limits import MAX_INTERMEDIATE
from potluck.model.vision.spec import Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import MAX_MERGE, check_out, rope_theta, table, transformer

GLM_4 = TowerFacts(
    patches="visual.patch_embed.proj",
    patch_norms=("", "visual.post_conv_layernorm"),
    frames=2,
    positions="visual.embeddings.position_embedding.weight",
    is_stretched=True,
    is_smooth=True,
    rope="halves",
    layer="visual.blocks.{}.",
    norms=("norm1", "norm2"),
    norm_kind="rms",
    qkv=("attn.qkv",),
    output="attn.proj",
    mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    has_bias=False,
    after="visual.post_layernorm",
    merger=Merger(
        kind="gated",
        norm="visual.merger.post_projection_norm",
        norm_kind="layer",
        products=(
            "visual.downsample",
            "visual.merger.proj",
            "visual.merger.gate_proj",
            "visual.merger.up_proj",
            "visual.merger.down_proj",
        ),
        has_bias=False,
    ),
    axes="blocks",
    sections=(8, 12, 12),
)
_USUAL: dict[str, object] = {"hidden_size": 1536, "depth": 24, "num_heads": 12}


def read_glm_4(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of GLM-4.1V and later ones, whose layers have the decoder's size in their middle."""
    check_out(eye, "out_hidden_size", out)
    merge = eye.integer("spatial_merge_size", 1, MAX_MERGE, 2)
    side, patch = table(eye, patch=14, size=336)
    middle = eye.integer("intermediate_size", 1, MAX_INTERMEDIATE, 13696)
    activation = eye.text("hidden_act", "silu")
    return TowerSpec(
        facts=replace(facts, has_qkv_bias=eye.flag("attention_bias", False)),
        **transformer(
            eye.over(_USUAL).having({"intermediate_size": out}), layers="depth", heads="num_heads"
        ),
        out=out,
        middle=(middle,),
        patch=patch,
        merge=merge,
        side=side,
        activation=activation,
        merger_activation=activation,
        norm_eps=eye.number("rms_norm_eps", 0.0, 1.0, 1e-5),
        merger_eps=1e-5,
        theta=rope_theta(eye, 10000.0),
    )
