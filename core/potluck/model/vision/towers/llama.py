"""The tower of Llama 4."""

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HIDDEN
from potluck.model.vision.spec import ClassToken, Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import cell_of_ratio, only, rope_theta, table, transformer

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
