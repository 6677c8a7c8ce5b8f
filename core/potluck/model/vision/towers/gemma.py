"""The towers of Gemma 3 (SigLIP, https://arxiv.org/abs/2303.15343) and Gemma 4."""

from dataclasses import replace
from typing import Literal

from potluck.model.fields import Fields, invalid
from potluck.model.vision.spec import MOST_ROWS, Merger, TowerFacts, TowerSpec
from potluck.model.vision.towers.sizes import (
    MAX_MERGE,
    MAX_PATCH,
    MAX_WIDTH,
    only,
    rope_theta,
    table,
    transformer,
)

_MAX_PLACES = 1 << 16  # of the table of positions of one axis

GEMMA_3 = TowerFacts(  # SigLIP: https://arxiv.org/abs/2303.15343
    patches="vision_tower.embeddings.patch_embedding",
    positions="vision_tower.embeddings.position_embedding.weight",
    layer="vision_tower.encoder.layers.{}.",
    norms=("layer_norm1", "layer_norm2"),
    norm_kind="layer",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    after="vision_tower.post_layernorm",
    merger=Merger(
        kind="mean",
        norm="multi_modal_projector.mm_soft_emb_norm",
        norm_kind="plus",
        products=("multi_modal_projector.mm_input_projection_weight",),
        has_bias=False,
        is_turned=True,
    ),
    sees_ahead="all",
)
_ROWS_4 = Merger(
    kind="mean",
    norm_kind="plain",
    products=("embed_vision.embedding_projection",),
    has_bias=False,
    is_scaled=True,
)
GEMMA_4 = TowerFacts(
    patches="vision_tower.patch_embedder.input_proj",
    patch_form="pixels",
    patch_bias=False,
    is_centred=True,
    positions="vision_tower.patch_embedder.position_embedding_table",
    has_axes=0,
    rope="halves",
    turns_columns_first=True,
    pairs="apart",
    layer="vision_tower.encoder.layers.{}.",
    norms=("input_layernorm", "pre_feedforward_layernorm"),
    norms_after=("post_attention_layernorm", "post_feedforward_layernorm"),
    norm_kind="rms",
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    qk_norms=("self_attn.q_norm", "self_attn.k_norm"),
    norms_heads=True,
    is_scaled=False,
    output="self_attn.o_proj.linear",
    mlp=("mlp.gate_proj.linear", "mlp.up_proj.linear", "mlp.down_proj.linear"),
    has_bias=False,
    merger=_ROWS_4,
)
GEMMA_4_UNIFIED = TowerFacts(  # patches become rows without any layer
    patches="vision_embedder.patch_dense",
    patch_form="pixels",
    patch_norms=("vision_embedder.patch_ln1", "vision_embedder.patch_ln2"),
    positions="vision_embedder.pos_embedding",
    has_axes=1,
    norm_kind="layer",
    before="vision_embedder.pos_norm",
    merger=replace(_ROWS_4, is_scaled=False),
)


def read_gemma_3(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Gemma 3."""
    rows = whole.integer("mm_tokens_per_image", 1, MOST_ROWS, 256)
    side, patch = table(eye)
    cells = int(rows**0.5)
    if cells * cells != rows or side % cells:
        raise invalid("mm_tokens_per_image", rows, f"must divide {side} x {side} patches")
    eps = eye.number("layer_norm_eps", 0.0, 1.0, 1e-6)
    return TowerSpec(
        facts=facts,
        **transformer(eye),
        out=out,
        middle=(),
        patch=patch,
        merge=side // cells,
        side=side,
        activation=eye.text("hidden_act", "gelu_pytorch_tanh"),
        norm_eps=eps,
        merger_eps=eps,
    )


def read_gemma_4(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """The tower of Gemma 4; the products of E2B and E4B have bounds."""
    only(eye, "attention_bias", None, False)
    sizes = transformer(eye)
    only(eye, "num_key_value_heads", sizes["heads"])
    only(eye, "head_dim", sizes["width"] // sizes["heads"])
    bounds = (facts.bounds or ()) if eye.flag("use_clipped_linears", False) else None
    merger, eps = facts.merger, eye.number("rms_norm_eps", 0.0, 1.0, 1e-6)
    if eye.flag("standardize", False):
        standard = ("vision_tower.std_bias", "vision_tower.std_scale")
        merger = replace(merger, standard=standard)
    return TowerSpec(
        facts=replace(facts, merger=merger, sees_ahead=_ahead(whole), bounds=bounds),
        **sizes,
        out=out,
        middle=(),
        patch=eye.integer("patch_size", 1, MAX_PATCH, 16),
        merge=eye.integer("pooling_kernel_size", 1, MAX_MERGE, 3),
        side=eye.integer("position_embedding_size", 1, _MAX_PLACES, 10240),
        activation=eye.text("hidden_activation", "gelu_pytorch_tanh"),
        norm_eps=eps,
        merger_eps=eps,
        theta=rope_theta(eye, 100.0),
    )


def read_gemma_4_unified(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    """What Gemma 4 12B has in place of a tower."""
    width = eye.integer("mm_embed_dim", 1, MAX_WIDTH, 3840)
    only(eye, "output_proj_dims", None, width)
    patch = eye.integer("patch_size", 1, MAX_PATCH, 16)
    return TowerSpec(
        facts=replace(facts, sees_ahead=_ahead(whole)),
        width=width,
        heads=1,
        intermediate=width,
        layers=0,
        out=out,
        middle=(),
        patch=patch * eye.integer("pooling_kernel_size", 1, MAX_MERGE, 3),
        merge=1,
        side=eye.integer("mm_posemb_size", 1, _MAX_PLACES, 1120),
        norm_eps=1e-5,
        merger_eps=eye.number("rms_norm_eps", 0.0, 1.0, 1e-6),
    )


def _ahead(whole: Fields) -> Literal["windows"] | None:
    """Whether rows of a picture see each other in the decoder's layers that have a window."""
    text = whole.fields("text_config") if "text_config" in whole else whole
    return "windows" if text.value("use_bidirectional_attention") == "vision" else None
