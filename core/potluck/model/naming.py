"""The names of a decoder's tensors: one way to write them, however the files do.

A decoder that is part of a larger model, one with a vision tower for example, is stored below that; one that was saved
without its head has no `model.` before its names.
"""

import re
from collections.abc import Iterable, Mapping

from potluck.model.names import BASE
from potluck.model.vision.spec import is_of_tower

EMBEDDING = BASE + "embed_tokens.weight"
FINAL_NORM = BASE + "norm.weight"
FINAL_MIX = BASE + "hyper_connection_mixer"  # of several residual streams
LM_HEAD = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"


_BASES = (
    BASE,
    "model.language_model.",
    "model.text_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "",
)
# What some families call the tensors beside the layers: their own → ours. DeepSeek V4 has the last ones.
_OTHER_NAMES: Mapping[str, str] = {
    "embeddings.weight": "embed_tokens.weight",
    "norm_f.weight": "norm.weight",
    "final_layernorm.weight": "norm.weight",
    "final_layernorm.bias": "norm.bias",
    "embedding_norm.weight": "norm.weight",
    "embed.weight": "embed_tokens.weight",
    "head.weight": LM_HEAD,
    **{f"hc_head_{part}": f"hc_head.hc_{part}" for part in ("fn", "base", "scale")},
}
_SCALE = re.compile(r"(layers\.\d+\.(?:attn|ffn)\.(?:.*\.)?w\w+)\.scale$")
_BARE = ".indexer.index_kpool_compress_gate"  # a matrix of GLM-5.3
_KEY_NORM = re.compile(r"(layers\.\d+\.attn\.)norm\.weight$")
# What transformers saves of Kimi Linear has the dense layers' MLP so as well.
_DENSE = re.compile(r"(layers\.\d+\.)block_sparse_moe\.((?:gate|up|down)_proj\.weight)$")


def decoder_names(stored: Iterable[str]) -> dict[str, str]:
    """Of each name in a model's files, our name. Tensors beside decoder and vision tower keep theirs."""
    usual = {name: _usual(name) for name in stored}
    found = _decoder_names(set(usual.values()))
    return {name: found[usual[name]] for name in usual}


def _decoder_names(everything: set[str]) -> dict[str, str]:
    towers = {name: ours for name in everything if is_of_tower(ours := _tower_name(name))}
    names = everything - set(towers)
    base = next((base for base in _BASES if base + EMBEDDING.removeprefix(BASE) in names), BASE)
    beside = {LM_HEAD, HEAD_BIAS, *(name for name in names if not name.startswith(base))}
    found = {name: name if name in beside else BASE + name.removeprefix(base) for name in names}
    above = base.removesuffix(BASE)  # the head is beside the decoder
    if above + LM_HEAD in names:
        found[above + LM_HEAD] = LM_HEAD
    return found | towers


def _usual(stored: str) -> str:
    """The name that most files have for a tensor."""
    bases = (base for base in _BASES if stored.startswith(base))
    base = next((base for base in bases if stored[len(base) :] in _OTHER_NAMES), None)
    name = stored if base is None else base + _OTHER_NAMES[stored[len(base) :]]
    if name.endswith(_BARE):
        name += ".weight"
    name = _SCALE.sub(r"\1.weight_scale", name)
    return _DENSE.sub(r"\1mlp.\2", _KEY_NORM.sub(r"\1kv_norm.weight", name))


def _tower_name(stored: str) -> str:
    name = stored.removeprefix(BASE)
    return name.replace("vision_tower.vision_model.", "vision_tower.", 1)
