"""The towers of Mistral Small 3, Pixtral and LightOnOCR (https://arxiv.org/abs/2410.07073)."""

from dataclasses import replace

from potluck.model.fields import Fields
from potluck.model.vision.spec import Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import MAX_MERGE, MAX_PATCH, only, rope_theta, transformer

MISTRAL_3 = TowerFacts(  # Pixtral: https://arxiv.org/abs/2410.07073
    patches="vision_tower.patch_conv",
    patch_bias=False,
    rope="turns",
    layer="vision_tower.transformer.layers.{}.",
    norms=("attention_norm", "ffn_norm"),
    norm_kind="rms",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
    has_bias=False,
    before="vision_tower.ln_pre",
    merger=Merger(
        kind="joined",
        norm="multi_modal_projector.norm",
        products=(
            "multi_modal_projector.patch_merger.merging_layer",
            "multi_modal_projector.linear_1",
            "multi_modal_projector.linear_2",
        ),
        has_bias=False,
    ),
)


LIGHT_ON_OCR = replace(
    MISTRAL_3,
    patches="vision_encoder.patch_conv",
    layer="vision_encoder.transformer.layers.{}.",
    before="vision_encoder.ln_pre",
    merger=replace(
        MISTRAL_3.merger,
        norm="vision_projection.norm",
        products=(
            "vision_projection.patch_merger.merging_layer",
            "vision_projection.linear_1",
            "vision_projection.linear_2",
        ),
    ),
)
PIXTRAL = replace(
    MISTRAL_3,
    merger=Merger(
        kind="mlp",
        products=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    ),
)


def read_mistral(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Mistral Small 3 and LightOnOCR."""
    return _read(
        whole,
        eye,
        facts,
        out,
        has_bias=whole.flag("multimodal_projector_bias", False),
        merge=whole.integer("spatial_merge_size", 1, MAX_MERGE, 2),
    )


def read_pixtral(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Pixtral 12B, a model of the kind LLaVA, each of whose patches becomes a row."""
    only(whole, "vision_feature_select_strategy", "full")
    return _read(
        whole,
        eye,
        facts,
        out,
        has_bias=whole.flag("multimodal_projector_bias", True),
        merge=1,
    )


def _read(
    whole: Fields, eye: Fields, facts: TowerFacts, out: int, *, has_bias: bool, merge: int
) -> TowerSpec:
    only(whole, "vision_feature_layer", None, -1)
    text = whole.fields("text_config") if "text_config" in whole else whole
    return TowerSpec(
        facts=replace(facts, merger=replace(facts.merger, has_bias=has_bias)),
        **transformer(eye.over(_USUAL)),
        out=out,
        middle=(out,),
        patch=eye.integer("patch_size", 1, MAX_PATCH, 16),
        merge=merge,
        activation=eye.text("hidden_act", "gelu"),
        merger_activation=whole.text("projector_hidden_act", "gelu"),
        norm_eps=1e-5,
        merger_eps=text.number("rms_norm_eps", 0.0, 1.0, 1e-5),
        theta=rope_theta(eye, 10000.0),
    )


_USUAL: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
