"""What a GGUF projector (`mmproj`) says of a vision tower, in the form of Hugging Face.

llama.cpp keeps the tower apart from the decoder. Fields begin with `clip.`, tensors with `v.` and `mm.` (`conversion/*.py`
and `tools/mtmd/clip.cpp` of llama.cpp). Its converter changes some tensors; `converted` in the config says which:

- the matrices of the frames of a patch stand apart (`frames_apart`), in Qwen's;
- the rows of queries, keys and values may be three matrices (`qkv_apart`);
- the rows of Pixtral's queries and keys are interleaved (`pairs`);
- the norm of Gemma's projector holds the whole factor, 1 + weight (`whole_norm`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from potluck.errors import BrokenModelError
from potluck.model.families.table import WITH_TEXT
from potluck.model.fields import Fields
from potluck.model.gguf.keys import Config, GgufFile, Keys
from potluck.model.vision.families import CONVERTED
from potluck.model.vision.spec import TowerSpec
from potluck.model.vision.towers.sizes import MAX_TOWER

ARCHITECTURE = "clip"
_PATCHES, _POSITIONS, _LAYER = "v.patch_embd", "v.position_embd.weight", "v.blk.{}."
_QKV = {1: ("attn_qkv",), 3: ("attn_q", "attn_k", "attn_v")}
_MLP = {2: ("ffn_up", "ffn_down"), 3: ("ffn_gate", "ffn_up", "ffn_down")}
_DEEP = re.compile(r"v\.deepstack\.(\d+)\.")
_WINDOW = 112  # pixels of the side of a window of Qwen2.5-VL, which no file states
_GEMMA_CELL = 4  # patches of the side of a cell, where a file does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projector:
    """One kind of projector.

    Attributes:
        wholes: for each architecture of a decoder's GGUF file, that of the whole model.
        norm, products: the names of the merger's tensors.
        gelu: which one `clip.use_gelu` is.
        more: adds to the fields of the tower and of the whole model.
    """

    wholes: Mapping[str, str]
    norm: str = "v.post_ln"
    products: tuple[str, ...] = ("mm.0", "mm.2")
    gelu: str = "gelu_pytorch_tanh"
    more: Callable[[Keys, Config, Config], None]


def _gemma(keys: Keys, eye: Config, whole: Config) -> None:
    patch = _size(keys, "vision.patch_size")
    cell = _size(keys, "vision.projector.scale_factor", _GEMMA_CELL)
    whole["mm_tokens_per_image"] = (keys.integer("vision.image_size") // patch // cell) ** 2
    eye["layer_norm_eps"] = keys.number("vision.attention.layer_norm_epsilon", 1e-6)
    eye[CONVERTED] = {"whole_norm": True}


def _qwen(keys: Keys, eye: Config, whole: Config) -> None:
    eye["spatial_merge_size"] = keys.integer("vision.spatial_merge_size", 2)
    is_apart = "v.blk.0.attn_q.weight" in keys.file.shapes
    eye[CONVERTED] = {"frames_apart": True, "qkv_apart": is_apart}


def _qwen_2(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    width = eye["embed_dim"] = _size(keys, "vision.embedding_length")
    eye["mlp_ratio"] = keys.integer("vision.feed_forward_length") / width
    del eye["hidden_size"]  # which is the decoder's, in that config


def _qwen_2_5(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    every, layers = _size(keys, "vision.n_wa_pattern"), _layers(keys)
    eye["fullatt_block_indexes"] = list(range(every - 1, layers, every))
    eye["window_size"] = keys.integer("vision.window_size", _WINDOW)


def _qwen_3(keys: Keys, eye: Config, whole: Config) -> None:
    _qwen(keys, eye, whole)
    eye["num_position_embeddings"] = keys.rows(_POSITIONS)
    flags = keys.items(f"{ARCHITECTURE}.vision.is_deepstack_layers")[:MAX_TOWER]
    eye["deepstack_visual_indexes"] = [layer for layer, flag in enumerate(flags) if flag]


def _pixtral_12b(keys: Keys, eye: Config, whole: Config) -> None:
    _pixtral(keys, eye, whole)
    whole["vision_feature_select_strategy"] = "full"


def _pixtral(keys: Keys, eye: Config, whole: Config) -> None:
    whole["spatial_merge_size"] = keys.integer("vision.spatial_merge_size", 1)
    whole["multimodal_projector_bias"] = "mm.1.bias" in keys.file.shapes
    eye["model_type"] = "pixtral"
    eye["rope_theta"] = keys.number("rope.freq_base", 10000.0)
    eye[CONVERTED] = {"pairs": True}


_PROJECTORS: Mapping[str, _Projector] = {
    "gemma3": _Projector(
        wholes={"gemma3": "Gemma3ForConditionalGeneration"},
        norm="mm.soft_emb_norm",
        products=("mm.input_projection.weight",),
        more=_gemma,
    ),
    "qwen2vl_merger": _Projector(
        wholes={"qwen2vl": "Qwen2VLForConditionalGeneration"}, gelu="quick_gelu", more=_qwen_2
    ),
    "qwen2.5vl_merger": _Projector(
        wholes={"qwen2vl": "Qwen2_5_VLForConditionalGeneration"}, more=_qwen_2_5
    ),
    "qwen3vl_merger": _Projector(
        wholes={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
            "qwen35": "Qwen3_5ForConditionalGeneration",
            "qwen35moe": "Qwen3_5MoeForConditionalGeneration",
        },
        more=_qwen_3,
    ),
    "pixtral": _Projector(
        wholes={
            "llama": "Mistral3ForConditionalGeneration",
            "mistral3": "Mistral3ForConditionalGeneration",
        },
        norm="mm.input_norm",
        products=("mm.patch_merger", "mm.1", "mm.2"),
        gelu="gelu",
        more=_pixtral,
    ),
    # Pixtral 12B, which names no other kind, but has nothing that makes one patch of a cell's.
    "pixtral-12b": _Projector(
        wholes={"llama": "LlavaForConditionalGeneration"},
        norm="",
        products=("mm.1", "mm.2"),
        gelu="gelu",
        more=_pixtral_12b,
    ),
}
SEEING_DECODERS = frozenset(name for row in _PROJECTORS.values() for name in row.wholes)
"""What GGUF files call the decoders of models that see."""
# What the text of a larger model is, where its file alone says another family of the same blocks.
_TEXTS = {"LlamaForCausalLM": "MistralForCausalLM"}


def seeing_config(text: Config, decoder: GgufFile, projector: GgufFile, name: str) -> Config:
    """The config of a whole model, from that of its decoder and from its projector.

    Args:
        text: the config of the decoder.
        decoder: its file.
        projector: the other file.
        name: of that, for messages.

    Raises:
        BrokenModelError: nothing computes such a tower, or it is of another model.
        InvalidConfigError: a field is missing, or has a wrong type or value.
    """
    keys, decoders = Keys(projector), Keys(decoder)
    kind = _kind(keys)
    row = _PROJECTORS.get(kind)
    if row is None:
        raise BrokenModelError(
            f"{name} beside the model sees by a projector of the kind {kind[:40]!r}, which Potluck does not compute.",
            file=name,
        )
    architecture, rows = row.wholes.get(decoders.architecture), text["hidden_size"]
    given = keys.integer("vision.projection_dim")
    if architecture is None or given not in (0, rows):  # the first files say 0
        raise BrokenModelError(
            f"{name} beside the model is the projector of another one: {kind} of {given} numbers, where"
            f" {decoders.architecture[:40]} of {rows} is.",
            file=name,
        )
    eye = _eye(keys, row)
    whole: Config = {"architectures": [architecture], "vision_config": eye}
    if "quantization_config" in text:
        whole["quantization_config"] = text["quantization_config"]
    row.more(keys, eye, whole)
    whole["text_config"] = text_part(text, architecture, decoders)
    return whole


def _kind(keys: Keys) -> str:
    """The row of the table for a file."""
    kind = keys.text("vision.projector_type", keys.text("projector_type", ""))
    has_cells = "mm.patch_merger.weight" in keys.file.shapes
    return "pixtral-12b" if kind == "pixtral" and not has_cells else kind


def _eye(keys: Keys, row: _Projector) -> Config:
    """What all projectors say, under both names that configs have for it."""
    layers, heads = _layers(keys), keys.integer("vision.attention.head_count")
    is_silu = keys.flag("use_silu", False)
    return {
        "hidden_size": keys.integer("vision.embedding_length"),
        "intermediate_size": keys.integer("vision.feed_forward_length"),
        "image_size": keys.integer("vision.image_size"),
        "patch_size": keys.integer("vision.patch_size"),
        "depth": layers,
        "num_hidden_layers": layers,
        "num_heads": heads,
        "num_attention_heads": heads,
        "hidden_act": "silu" if is_silu else row.gelu,
    }


def text_part(text: Config, architecture: str, decoder: Keys) -> Config:
    """The config of the decoder as a part of that of the whole."""
    name = next(Fields(text).texts("architectures"))
    name = _TEXTS.get(name, name)
    kinds = {family: kind for kind, family in WITH_TEXT[architecture].items()}
    found: Config = {**text, "model_type": kinds.get(name, name)}
    if name in _TEXTS.values():
        found.setdefault("sliding_window", None)
    found.pop("quantization_config", None)
    sections = decoder.items(f"{decoder.architecture}.rope.dimension_sections")[:3]
    if sections:
        inner = next((key for key in ("rope_parameters", "rope_scaling") if key in found), None)
        more = {"mrope_section": list(sections)}
        scaling = None if inner is None else found[inner]
        if inner is not None and isinstance(scaling, Mapping):
            found[inner] = {**scaling, **more}
        else:
            found |= more
    return found


def preprocessing(projector: GgufFile) -> Config:
    """What `preprocessor_config.json` has: how pixels become numbers, and sizes of pictures."""
    keys, found = Keys(projector), Config()
    for name in ("image_mean", "image_std"):
        if values := keys.items(f"{ARCHITECTURE}.vision.{name}"):
            found[name] = [_rounded(value) for value in values[:3]]
    for name, key in (("min_pixels", "image_min_pixels"), ("max_pixels", "image_max_pixels")):
        if f"vision.{key}" in keys:
            found[name] = keys.integer(f"vision.{key}")
    return found


def projector_names(tower: TowerSpec, projector: GgufFile) -> dict[str, str]:
    """For each tensor of a tower its name in the file."""
    keys, facts = Keys(projector), tower.facts
    row, deep = _PROJECTORS[_kind(keys)], facts.deep
    renamed = replace(
        facts,
        patches=_PATCHES,
        positions=None if facts.positions is None else _POSITIONS,
        layer=_LAYER,
        norms=("ln1", "ln2"),
        qkv=_QKV[len(facts.qkv)],
        output="attn_out",
        mlp=_MLP[len(facts.mlp)],
        before=None if facts.before is None else "v.pre_ln",
        after=None if facts.after is None else "v.post_ln",
        merger=replace(facts.merger, norm=row.norm, products=row.products),
        deep=None
        if deep is None
        else replace(
            deep,
            norm="v.deepstack.{}.norm",
            products=("v.deepstack.{}.fc1", "v.deepstack.{}.fc2"),
        ),
    )
    theirs = list(replace(tower, facts=renamed).tensors())
    up = tower.intermediate, tower.width
    if up[0] != up[1] and projector.shapes.get("v.blk.0.ffn_down.weight") == up:
        theirs = list(map(_swapped, theirs))  # as the first converters called them
    theirs = [_DEEP.sub(lambda found: _deep(tower, found), name) for name in theirs]
    return dict(zip(tower.tensors(), theirs, strict=True))


def _deep(tower: TowerSpec, found: re.Match[str]) -> str:
    """Files count the mergers within the tower by their layer."""
    return f"v.deepstack.{tower.deep_layers[int(found[1])]}."


def _swapped(name: str) -> str:
    if ".ffn_up." in name:
        return name.replace(".ffn_up.", ".ffn_down.")
    return name.replace(".ffn_down.", ".ffn_up.")


def _layers(keys: Keys) -> int:
    layers = keys.integer("vision.block_count")
    if not 0 < layers <= MAX_TOWER:
        raise keys.invalid("vision.block_count", f"must be from 1 to {MAX_TOWER}")
    return layers


def _size(keys: Keys, name: str, default: int | None = None) -> int:
    size = keys.integer(name, default)
    if size < 1:
        raise keys.invalid(name, "must be at least 1")
    return size


def _rounded(value: object) -> object:
    """A number with the digits that an f32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
