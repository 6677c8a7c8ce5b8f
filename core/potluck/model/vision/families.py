"""The table of vision towers: for each architecture the facts of its tower, and where its config has the sizes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypedDict

from potluck.errors import InvalidConfigError
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, MAX_THETA
from potluck.model.vision.spec import MOST_ROWS, Merger, TowerFacts, TowerSpec

_MAX_PATCH = 64  # pixels
_MAX_MERGE = 16  # patches of a cell's side
_MAX_SIDE = 1024  # patches of the side of a table of positions
_MAX_WIDTH = 1 << 13
MAX_TOWER = 256  # layers; the largest known has 63
_MAX_DEEP = 8
CONVERTED = "converted"
"""The field of a vision config that says how a converter wrote the tensors: not all as Hugging Face has them."""

_QWEN_3_5 = TowerFacts(
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
_QWEN_3 = replace(
    _QWEN_3_5,
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
_QWEN_2_5 = TowerFacts(
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
_GEMMA_3 = TowerFacts(  # SigLIP: https://arxiv.org/abs/2303.15343
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
        products=("multi_modal_projector.mm_input_projection_weight",),
    ),
    sees_ahead=True,
)
_MISTRAL_3 = TowerFacts(  # Pixtral: https://arxiv.org/abs/2410.07073
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


def _qwen(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    given = eye.integer("out_hidden_size", 1, MAX_HIDDEN, out)
    if given != out:
        raise invalid(eye.path("out_hidden_size"), given, f"must be the hidden size, {out}")
    deep: tuple[int, ...] = ()
    if facts.deep is not None:
        deep = eye.integers("deepstack_visual_indexes", 0, MAX_TOWER, _MAX_DEEP)
    places = eye.integer("num_position_embeddings", 1, _MAX_SIDE**2, 2304)
    patch, merge = eye.integer("patch_size", 1, _MAX_PATCH), _merge(eye)
    is_windowed = "fullatt_block_indexes" in eye
    window = eye.integer("window_size", patch * merge, 1 << 14, 112) if is_windowed else 0
    return TowerSpec(
        facts=facts,
        **_sizes(eye, ("depth", "num_heads")),
        out=out,
        patch=patch,
        merge=merge,
        side=0 if facts.positions is None else int(places**0.5),
        window=window // merge // patch,
        whole_layers=frozenset(eye.integers("fullatt_block_indexes", 0, MAX_LAYERS, MAX_TOWER)),
        deep_layers=deep,
        activation=eye.text("hidden_act", "silu" if is_windowed else "gelu_pytorch_tanh"),
    )


def _gemma(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    rows = whole.integer("mm_tokens_per_image", 1, MOST_ROWS, 256)
    size = eye.integer("image_size", 1, 1 << 14)
    patch = eye.integer("patch_size", 1, _MAX_PATCH)
    side, cells = size // patch, int(rows**0.5)
    if cells * cells != rows or side % cells:
        raise invalid("mm_tokens_per_image", rows, f"must divide {side} x {side} patches")
    eps = eye.number("layer_norm_eps", 0.0, 1.0, 1e-6)
    return TowerSpec(
        facts=facts,
        **_sizes(eye, ("num_hidden_layers", "num_attention_heads")),
        out=out,
        patch=patch,
        merge=side // cells,
        side=side,
        activation=eye.text("hidden_act", "gelu_pytorch_tanh"),
        norm_eps=eps,
        merger_eps=eps,
    )


def _mistral(whole: Fields, eye: Fields, facts: TowerFacts, out: int) -> TowerSpec:
    if whole.value("vision_feature_layer") not in (None, -1):
        raise invalid("vision_feature_layer", whole.value("vision_feature_layer"), "must be -1")
    parameters = eye.fields("rope_parameters") if "rope_parameters" in eye else eye
    has_bias = whole.flag("multimodal_projector_bias", False)
    text = whole.fields("text_config") if "text_config" in whole else whole
    return TowerSpec(
        facts=replace(facts, merger=replace(facts.merger, has_bias=has_bias)),
        **_sizes(eye, ("num_hidden_layers", "num_attention_heads"), intermediate=4096),
        out=out,
        patch=eye.integer("patch_size", 1, _MAX_PATCH, 16),
        merge=whole.integer("spatial_merge_size", 1, _MAX_MERGE, 2),
        activation=eye.text("hidden_act", "gelu"),
        merger_activation=whole.text("projector_hidden_act", "gelu"),
        norm_eps=1e-5,
        merger_eps=text.number("rms_norm_eps", 0.0, 1.0, 1e-5),
        theta=parameters.number("rope_theta", 1.0, MAX_THETA, 10000.0),
    )


def _merge(eye: Fields) -> int:
    return eye.integer("spatial_merge_size", 1, _MAX_MERGE, 2)


class _Sizes(TypedDict):
    width: int
    layers: int
    heads: int
    intermediate: int


def _sizes(eye: Fields, names: tuple[str, str], intermediate: int | None = None) -> _Sizes:
    """The sizes of the transformer; `names` are those of layers and heads."""
    layers, heads = names
    width = eye.integer("hidden_size", 4, _MAX_WIDTH)
    sizes: _Sizes = {
        "width": width,
        "layers": eye.integer(layers, 1, MAX_TOWER),
        "heads": eye.integer(heads, 1, width),
        "intermediate": eye.integer("intermediate_size", 1, MAX_INTERMEDIATE, intermediate),
    }
    if width % (4 * sizes["heads"]):
        raise invalid(eye.path("hidden_size"), width, "must have heads of a multiple of 4 numbers")
    return sizes


_Reader = Callable[[Fields, Fields, TowerFacts, int], TowerSpec]
_TOWERS: Mapping[str, tuple[TowerFacts, _Reader]] = {
    "Gemma3ForConditionalGeneration": (_GEMMA_3, _gemma),
    "Mistral3ForConditionalGeneration": (_MISTRAL_3, _mistral),
    "Qwen2_5_VLForConditionalGeneration": (_QWEN_2_5, _qwen),
    "Qwen3VLForConditionalGeneration": (_QWEN_3, _qwen),
    "Qwen3_5ForConditionalGeneration": (_QWEN_3_5, _qwen),
    "Qwen3_5MoeForConditionalGeneration": (_QWEN_3_5, _qwen),
}
_ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "silu")


def read_tower(
    whole: Fields, text: Fields, architecture: str, *, out: int, pairs: int
) -> TowerSpec | None:
    """The tower of a model; None: it has none, or one that is not known.

    A model whose tower cannot be read still reads and writes text.

    Args:
        whole: the fields of `config.json`.
        text: those of its decoder.
        architecture: of the whole model.
        out: the decoder's hidden size.
        pairs: of the decoder's rope.
    """
    if (row := _TOWERS.get(architecture)) is None or "vision_config" not in whole:
        return None
    facts, read = row
    try:
        eye = whole.fields("vision_config")
        tower = read(whole, eye, _as_converted(facts, eye), out)
        tower = replace(tower, axes=_axes(facts, text, pairs))
    except InvalidConfigError:
        return None
    known = {tower.activation, tower.merger_activation} <= set(_ACTIVATIONS)
    return tower if known else None


def _as_converted(facts: TowerFacts, eye: Fields) -> TowerFacts:
    """The facts of a tower whose tensors another program has written in an order of its own; see `projector.py`."""
    if CONVERTED not in eye:
        return facts
    changes = eye.fields(CONVERTED)
    qkv = facts.qkv
    if len(qkv) == 1 and changes.flag("qkv_apart", False):
        qkv = tuple(qkv[0].removesuffix("qkv") + part for part in "qkv")
    has_whole_norm = changes.flag("whole_norm", False)
    return replace(
        facts,
        qkv=qkv,
        frames_apart=changes.flag("frames_apart", False),
        has_pairs=changes.flag("pairs", False),
        merger=replace(facts.merger, has_whole_norm=has_whole_norm),
    )


def _axes(facts: TowerFacts, text: Fields, pairs: int) -> tuple[int, ...]:
    """For each pair of the decoder's rope the axis by which it turns."""
    if facts.axes is None:
        return ()
    names = (name for name in ("rope_parameters", "rope_scaling") if name in text)
    parameters = text.fields(name) if (name := next(names, None)) is not None else text
    sections = parameters.integers("mrope_section", 0, pairs, 3) or facts.sections
    if len(sections) != 3 or sum(sections) != pairs:
        raise invalid(parameters.path("mrope_section"), len(sections), f"must have {pairs} pairs")
    if facts.axes == "blocks":
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    return tuple(
        axis if (axis := pair % 3) and pair < 3 * sections[axis] else 0 for pair in range(pairs)
    )
