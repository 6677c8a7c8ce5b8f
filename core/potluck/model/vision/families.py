"""The table of vision towers: for each architecture the facts of its tower, and what reads its sizes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from potluck.errors import InvalidConfigError
from potluck.model.fields import Fields, escaped, invalid
from potluck.model.vision.spec import PatchForm, TowerFacts, TowerSpec
from potluck.model.vision.towers.gemma import (
    GEMMA_3,
    GEMMA_4,
    GEMMA_4_UNIFIED,
    read_gemma_3,
    read_gemma_4,
    read_gemma_4_unified,
)
from potluck.model.vision.towers.glm import GLM_4, read_glm_4
from potluck.model.vision.towers.idefics import IDEFICS_3, read_idefics_3
from potluck.model.vision.towers.internvl import INTERNVL, read_internvl
from potluck.model.vision.towers.llama import LLAMA_4, read_llama_4
from potluck.model.vision.towers.llava import CLIP, LLAVA_NEXT, read_clip, read_llava_next
from potluck.model.vision.towers.mistral import (
    LIGHT_ON_OCR,
    MISTRAL_3,
    PIXTRAL,
    read_mistral,
    read_pixtral,
)
from potluck.model.vision.towers.qwen import (
    QWEN_2,
    QWEN_2_5,
    QWEN_3,
    QWEN_3_5,
    read_qwen,
    read_qwen_2,
)
from potluck.model.vision.towers.sizes import Reader

CONVERTED = "converted"
"""The field of a vision config that says how a converter wrote the tensors: not all as Hugging Face has them."""

# A model that may have towers of several kinds has the `model_type` of its `vision_config` behind its name.
_TOWERS: Mapping[str, tuple[TowerFacts, Reader]] = {
    "Gemma3ForConditionalGeneration": (GEMMA_3, read_gemma_3),
    "Gemma4ForConditionalGeneration": (GEMMA_4, read_gemma_4),
    "Gemma4UnifiedForConditionalGeneration": (GEMMA_4_UNIFIED, read_gemma_4_unified),
    "Glm4vForConditionalGeneration": (GLM_4, read_glm_4),
    "Glm4vMoeForConditionalGeneration": (GLM_4, read_glm_4),
    "Glm46VForConditionalGeneration": (GLM_4, read_glm_4),
    "Idefics3ForConditionalGeneration": (IDEFICS_3, read_idefics_3),
    "SmolVLMForConditionalGeneration": (IDEFICS_3, read_idefics_3),
    "InternVLForConditionalGeneration": (INTERNVL, read_internvl),
    "LightOnOCRForConditionalGeneration": (LIGHT_ON_OCR, read_mistral),  # as the first files say
    "LightOnOcrForConditionalGeneration": (LIGHT_ON_OCR, read_mistral),
    "Llama4ForConditionalGeneration": (LLAMA_4, read_llama_4),
    "LlavaForConditionalGeneration/clip_vision_model": (CLIP, read_clip),
    "LlavaForConditionalGeneration/pixtral": (PIXTRAL, read_pixtral),
    "LlavaNextForConditionalGeneration/clip_vision_model": (LLAVA_NEXT, read_llava_next),
    "Mistral3ForConditionalGeneration": (MISTRAL_3, read_mistral),
    "Qwen2VLForConditionalGeneration": (QWEN_2, read_qwen_2),
    "Qwen2_5_VLForConditionalGeneration": (QWEN_2_5, read_qwen),
    "Qwen3VLForConditionalGeneration": (QWEN_3, read_qwen),
    "Qwen3VLMoeForConditionalGeneration": (QWEN_3, read_qwen),
    "Qwen3_5ForConditionalGeneration": (QWEN_3_5, read_qwen),
    "Qwen3_5MoeForConditionalGeneration": (QWEN_3_5, read_qwen),
}
_ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "silu")


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
    if "vision_config" not in whole:
        return None
    try:
        eye = whole.fields("vision_config")
        name = architecture
        if name not in _TOWERS:
            name = f"{name}/{eye.text('model_type', '')}"
        if (row := _TOWERS.get(name)) is None:
            return None
        facts, read = row
        tower = read(whole, eye, _as_converted(facts, eye), out)
        tower = replace(tower, name=name, axes=_axes(facts, text, pairs))
    except InvalidConfigError:
        return None
    known = {tower.activation, tower.merger_activation} <= set(_ACTIVATIONS)
    return tower if known else None


def missing_tower(raw: Mapping[str, object], architecture: str) -> str | None:
    """Which tower a model has that nothing computes, a sentence; None: its config has none."""
    eye = raw.get("vision_config")
    if not isinstance(eye, Mapping):
        return None
    kind = cast("Mapping[str, object]", eye).get("model_type")
    name = kind if isinstance(kind, str) else architecture
    return f"{architecture} sees by a tower of the kind {escaped(name)}, which Potluck does not compute."


def _as_converted(facts: TowerFacts, eye: Fields) -> TowerFacts:
    """The facts of a tower whose tensors another program has written in an order of its own; see `projector.py`."""
    if CONVERTED not in eye:
        return facts
    changes = eye.fields(CONVERTED)
    qkv = facts.qkv
    if len(qkv) == 1 and changes.flag("qkv_apart", False):
        qkv = tuple(qkv[0].removesuffix("qkv") + part for part in "qkv")
    merger = facts.merger
    if changes.flag("whole_norm", False):
        merger = replace(merger, norm_kind="rms")
    has_axes = facts.has_axes
    if changes.flag("axes_apart", False):
        has_axes = 0
    return replace(
        facts,
        patch_form=_patch_form(changes, facts),
        has_axes=has_axes,
        bounds=(1,) if changes.flag("bounds_are_rows", False) else facts.bounds,
        qkv=qkv,
        frames_apart=changes.flag("frames_apart", False),
        pairs="beside" if changes.flag("pairs", False) else facts.pairs,
        merger=merger,
    )


def _patch_form(changes: Fields, facts: TowerFacts) -> PatchForm:
    match changes.text("patch_form", facts.patch_form):
        case "convolution" | "matrix" | "pixels" as form:
            return form
        case form:
            raise invalid(changes.path("patch_form"), form, "must be one that is known")


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
