"""What a GGUF projector (`mmproj`) says of a vision tower, in the form of Hugging Face.

llama.cpp keeps the tower apart from the decoder. Fields begin with `clip.`, tensors with `v.` and `mm.` (`conversion/*.py`
and `tools/mtmd/clip.cpp` of llama.cpp). Its converter changes some tensors; `converted` in the config says which:

- the matrices of the frames of a patch stand apart (`frames_apart`), in Qwen's;
- the rows of queries, keys and values may be three matrices (`qkv_apart`);
- the rows of Pixtral's queries and keys are interleaved (`pairs`);
- the norm of Gemma's projector holds the whole factor, 1 + weight (`whole_norm`);
- the colours of Gemma 4's patches come one after the other (`patch_form`), its tables of positions too (`axes_apart`);
- numbers are rows of one number (`bounds_are_rows`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from potluck.errors import BrokenModelError
from potluck.model.families.table import WITH_TEXT
from potluck.model.fields import Fields
from potluck.model.gguf.keys import Config, GgufFile, Keys
from potluck.model.vision.projector_kinds import (
    ARCHITECTURE,
    BOUND,
    NEW_LINE,
    POSITIONS,
    PROJECTORS,
    ProjectorKind,
    layers_of,
)
from potluck.model.vision.spec import TowerFacts, TowerSpec

_PATCHES, _LAYER = "v.patch_embd", "v.blk.{}."
_QKV = {0: (), 1: ("attn_qkv",), 3: ("attn_q", "attn_k", "attn_v")}
_MLP = {0: (), 2: ("ffn_up", "ffn_down"), 3: ("ffn_gate", "ffn_up", "ffn_down")}
_DEEP = re.compile(r"v\.deepstack\.(\d+)\.")

SEEING_DECODERS = frozenset(name for row in PROJECTORS.values() for name in row.wholes)
"""What GGUF files call the decoders of models that see."""
# What the text of a larger model is, where its file alone says another family of the same blocks.
_TEXTS = {
    "LlamaForCausalLM": "MistralForCausalLM",
    "Gemma4ForCausalLM": "Gemma4UnifiedForCausalLM",
    "Glm4ForCausalLM": "Glm4vForCausalLM",
    "Glm4MoeForCausalLM": "Glm4vMoeForCausalLM",
}

_LIMITS = {
    "min_pixels": "image_min_pixels",
    "max_pixels": "image_max_pixels",
    "max_patches": "preproc_max_tiles",
}


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
    row = PROJECTORS.get(kind)
    if row is None:
        raise BrokenModelError(
            f"{name} beside the model sees by a projector of the kind {kind[:40]!r}, which Potluck does not compute.",
            file=name,
        )
    architecture, rows = row.wholes.get(decoders.architecture), text["hidden_size"]
    given = keys.rows(row.rows) if row.rows else keys.integer("vision.projection_dim")
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
    whole["text_config"] = text_part(text, architecture, decoders) | dict(row.text)
    return whole


def _kind(keys: Keys) -> str:
    """The row of the table for a file."""
    kind = keys.text("vision.projector_type", keys.text("projector_type", ""))
    shapes = keys.file.shapes
    if not kind and keys.flag("has_llava_projector", False):
        kind = "mlp"  # the first files of LLaVA name no kind, since there was no other
    if kind == "gemma4v" and BOUND in shapes:
        return "gemma4v-bounds"
    if kind == "mlp" and NEW_LINE in shapes:
        return "mlp_grids"
    return "pixtral-12b" if kind == "pixtral" and "mm.patch_merger.weight" not in shapes else kind


def _eye(keys: Keys, row: ProjectorKind) -> Config:
    """What all projectors say, under both names that configs have for it."""
    layers = layers_of(keys) if row.has_layers else 0
    heads = keys.integer("vision.attention.head_count")
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
    kinds = {family: kind for kind, family in WITH_TEXT[architecture].items()}
    name = name if name in kinds else _TEXTS.get(name, name)
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
    if "vision.preproc_image_size" in keys:
        found["size"] = {"longest_edge": keys.integer("vision.preproc_image_size")}
        found["max_image_size"] = {"longest_edge": keys.integer("vision.image_size")}
    for name, key in _LIMITS.items():
        if f"vision.{key}" in keys:
            found[name] = keys.integer(f"vision.{key}")
    return found


def projector_names(tower: TowerSpec, projector: GgufFile) -> dict[str, str]:
    """For each tensor of a tower its name in the file."""
    renamed = _renamed(tower.facts, PROJECTORS[_kind(Keys(projector))])
    theirs = list(replace(tower, facts=renamed).tensors())
    up = tower.intermediate, tower.width
    if up[0] != up[1] and projector.shapes.get("v.blk.0.ffn_down.weight") == up:
        theirs = list(map(_swapped, theirs))  # as the first converters called them
    theirs = [_DEEP.sub(lambda found: _deep(tower, found), name) for name in theirs]
    return dict(zip(tower.tensors(), theirs, strict=True))


def _renamed(facts: TowerFacts, row: ProjectorKind) -> TowerFacts:
    """The facts of a tower, with the file's names in place of Hugging Face's."""
    token, deep, standard = facts.token, facts.deep, facts.merger.standard
    merger = replace(facts.merger, norm=row.norm, products=row.products)
    return replace(
        facts,
        patches=_PATCHES,
        patch_norms=facts.patch_norms and row.patch_norms,
        positions=facts.positions and POSITIONS,
        line_end=facts.line_end and NEW_LINE,
        token=token and replace(token, name="v.class_embd"),
        layer=_LAYER,
        norms=("ln1", "ln2"),
        norms_after=facts.norms_after and ("attn_post_norm", "ffn_post_norm"),
        scales=facts.scales and ("ls1.weight", "ls2.weight"),
        qkv=_QKV[len(facts.qkv)],
        qk_norms=facts.qk_norms and ("attn_q_norm", "attn_k_norm"),
        output="attn_out",
        mlp=_MLP[len(facts.mlp)],
        before=facts.before and row.before,
        after=facts.after and "v.post_ln",
        merger=replace(merger, standard=standard and ("v.std_bias", "v.std_scale")),
        deep=deep
        and replace(
            deep,
            norm="v.deepstack.{}.norm",
            products=("v.deepstack.{}.fc1", "v.deepstack.{}.fc2"),
        ),
    )


def _deep(tower: TowerSpec, found: re.Match[str]) -> str:
    """Files count the mergers within the tower by their layer."""
    return f"v.deepstack.{tower.deep_layers[int(found[1])]}."


def _swapped(name: str) -> str:
    if ".ffn_up." in name:
        return name.replace(".ffn_up.", ".ffn_down.")
    return name.replace(".ffn_down.", ".ffn_up.")


def _rounded(value: object) -> object:
    """A number with the digits that an f32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
