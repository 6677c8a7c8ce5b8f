"""The towers of Llama 4 and of LLaVA 1.5 (https://arxiv.org/abs/2310.03744), whose tower is CLIP's."""

from dataclasses import replace

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HIDDEN
from potluck.model.vision.spec import ClassToken, Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import (
    MAX_TOWER,
    cell_of_ratio,
    only,
    rope_theta,
    table,
    transformer,
)

LLAMA_4 = TowerFacts(
    patches="vision_model.patch_embedding.linear",
    patch_form="matrix",
    patch_bias=False,
    positions="vision_model.positional_embedding_vlm",
    token=ClassToken(name="vision_model.class_embedding", is_last=True),
    is_tiled=True,
    rope="halves",
    turns_columns_first=True,
    rope_from=1,
    pairs="beside",
    layer="vision_model.model.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    norm_kind="layer",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    before="vision_model.layernorm_pre",
    after="vision_model.layernorm_post",
    merger=Merger(
        kind="mlp",
        products=(
            "vision_model.vision_adapter.mlp.fc1",
            "vision_model.vision_adapter.mlp.fc2",
            "multi_modal_projector.linear_1",
        ),
        has_bias=False,
    ),
)
CLIP = TowerFacts(
    patches="vision_tower.embeddings.patch_embedding",
    patch_bias=False,
    positions="vision_tower.embeddings.position_embedding.weight",
    token=ClassToken(name="vision_tower.embeddings.class_embedding"),
    layer="vision_tower.encoder.layers.{}.",
    norms=("layer_norm1", "layer_norm2"),
    norm_kind="layer",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    before="vision_tower.pre_layrnorm",
    merger=Merger(
        kind="mlp",
        products=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    ),
)


def read_llama_4(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Llama 4."""
    only(eye, "multi_modal_projector_bias", None, False)
    merge = cell_of_ratio(eye, "pixel_shuffle_ratio")
    sizes = transformer(eye)
    joined = sizes["width"] * merge * merge
    if sizes["intermediate"] != joined:  # the adapter reads cells, and calls their size so
        raise invalid(eye.path("intermediate_size"), sizes["intermediate"], f"must be {joined}")
    names = ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    first, second, rows = (eye.integer(name, 1, MAX_HIDDEN) for name in names)
    if not first == second == rows:
        raise invalid(eye.path(names[2]), rows, f"must be {first}, as the adapter's other sizes")
    side, patch = table(eye, merge, patch=14)
    return TowerSpec(
        facts=facts,
        **sizes,
        out=out,
        middle=(first, second),
        patch=patch,
        merge=merge,
        side=side,
        activation="gelu",
        norm_eps=1e-5,
        theta=rope_theta(eye, 10000.0),
    )


def read_clip(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of LLaVA 1.5: that of CLIP up to its last but one layer."""
    only(whole, "vision_feature_select_strategy", None, "default")
    sizes = transformer(eye)
    layer = whole.value("vision_feature_layer")
    last = whole.integer("vision_feature_layer", -MAX_TOWER, -1, -2) if layer is not None else -2
    sizes["layers"] += last + 1
    if sizes["layers"] < 1:
        raise invalid("vision_feature_layer", layer, "must be one of the tower's layers")
    side, patch = table(eye, patch=14)
    eps = eye.number("layer_norm_eps", 0.0, 1.0, 1e-5)
    has_bias = whole.flag("multimodal_projector_bias", True)
    return TowerSpec(
        facts=replace(facts, merger=replace(facts.merger, has_bias=has_bias)),
        **sizes,
        out=out,
        middle=(out,),
        patch=patch,
        merge=1,
        side=side,
        activation=eye.text("hidden_act", "quick_gelu"),
        merger_activation=whole.text("projector_hidden_act", "gelu"),
        norm_eps=eps,
    )
