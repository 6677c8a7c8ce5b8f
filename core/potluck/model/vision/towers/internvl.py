"""The tower of InternVL 3 and 3.5 (https://arxiv.org/abs/2504.10479), as `transformers` writes them."""

from dataclasses import replace

from potluck.model.fields import Fields, invalid
from potluck.model.vision.spec import ClassToken, Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import cell_of_ratio, only, table, transformer

INTERNVL = TowerFacts(
    patches="vision_tower.embeddings.patch_embeddings.projection",
    positions="vision_tower.embeddings.position_embeddings",
    token=ClassToken(name="vision_tower.embeddings.cls_token", has_batch=True),
    is_tiled=True,
    layer="vision_tower.encoder.layer.{}.",
    norms=("layernorm_before", "layernorm_after"),
    norm_kind="layer",
    scales=("lambda_1", "lambda_2"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.projection_layer",
    mlp=("mlp.fc1", "mlp.fc2"),
    merger=Merger(
        kind="mlp",
        norm="multi_modal_projector.layer_norm",
        norm_kind="layer",
        norms_cell=True,
        products=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    ),
)


def read_internvl(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of InternVL."""
    only(whole, "vision_feature_layer", None, -1)
    only(whole, "vision_feature_select_strategy", None, "default")
    only(eye, "use_absolute_position_embeddings", None, True)
    only(eye, "use_mask_token", None, False)
    only(eye, "use_mean_pooling", None, True)
    kinds = {"layer_norm": "layer", "rms_norm": "rms"}
    if (kind := kinds.get(eye.text("norm_type", "layer_norm"))) is None:
        raise invalid(eye.path("norm_type"), eye.value("norm_type"), f"must be of {list(kinds)}")
    merge = cell_of_ratio(whole, "downsample_ratio")
    side, patch = table(eye, merge, patch=14, size=448)
    qk_norms = ("attention.q_norm", "attention.k_norm")
    own = replace(
        facts,
        norm_kind="rms" if kind == "rms" else "layer",
        qk_norms=qk_norms if eye.flag("use_qk_norm", False) else None,
        has_qkv_bias=eye.flag("attention_bias", False),
    )
    return TowerSpec(
        facts=own,
        **transformer(eye),
        out=out,
        middle=(out,),
        patch=patch,
        merge=merge,
        side=side,
        activation=eye.text("hidden_act", "gelu"),
        merger_activation=whole.text("projector_hidden_act", "gelu"),
        norm_eps=eye.number("layer_norm_eps", 0.0, 1.0, 1e-6),
        merger_eps=1e-5,
    )
