"""The names of a decoder's tensors: one way to write them, however the files do.

A decoder that is part of a larger model, one with a vision tower for example, is stored below that; one that was saved
without its head has no `model.` before its names.
"""

from collections.abc import Iterable

from potluck.model.vision.spec import is_of_tower

BASE = "model."  # the decoder, beside its head
EMBEDDING = BASE + "embed_tokens.weight"
FINAL_NORM = BASE + "norm.weight"
FINAL_MIX = BASE + "hyper_connection_mixer"  # of several residual streams
LM_HEAD = "lm_head.weight"

_BASES = (
    BASE,
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "",
)
_OTHER_NAMES = {
    "embeddings.weight": "embed_tokens.weight",
    "norm_f.weight": "norm.weight",
    "final_layernorm.weight": "norm.weight",
    "embedding_norm.weight": "norm.weight",
}
"""What some families call the tensors beside the layers: their own → ours."""


def decoder_names(stored: Iterable[str]) -> dict[str, str]:
    """Of each name in a model's files, our name. Tensors beside decoder and vision tower keep theirs."""
    everything = set(stored)
    towers = {name: ours for name in everything if is_of_tower(ours := _tower_name(name))}
    names = everything - set(towers)
    embedding = EMBEDDING.removeprefix(BASE)
    called = (embedding, *(own for own, ours in _OTHER_NAMES.items() if ours == embedding))
    base = next((base for base in _BASES if any(base + one in names for one in called)), BASE)
    beside = {LM_HEAD, *(name for name in names if not name.startswith(base))}
    found = {
        name: name if name in beside else BASE + _our(name.removeprefix(base)) for name in names
    }
    above = base.removesuffix(BASE)  # the head is beside the decoder
    if above + LM_HEAD in names:
        found[above + LM_HEAD] = LM_HEAD
    return found | towers


def _our(name: str) -> str:
    return _OTHER_NAMES.get(name, name)


def _tower_name(stored: str) -> str:
    name = stored.removeprefix(BASE)
    return name.replace("vision_tower.vision_model.", "vision_tower.", 1)
