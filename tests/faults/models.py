"""The models that the harness asks: random ones of a few million weights, each of a family."""

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import transformers
from byte_model import VOCABULARY, save_byte_tokenizer
from tiny_models import make_model

from potluck.model.config import ModelConfig
from potluck.model.footprint import Footprint, stage_footprint
from potluck.model.schemes import Scheme

CONTEXT = 304
LAYERS = 12
SESSIONS = 8
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
# Fewer bits, more weights: a layer of any scheme is large beside the caches of some sessions, so that
# it is the layers that decide how many computers a model needs.
_WIDTH: dict[Scheme, int] = {"f32": 704, "bf16": 704, "int8": 1408, "int4": 2816}
# The variant of `model_variants/`, and what differs from it.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gemma3": (
        "gemma 3",
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 4,
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model on disk, for one scheme."""

    folder: Path
    config: ModelConfig
    scheme: Scheme

    def share_bytes(self, computers: int) -> int:
        """The memory that each computer lends, so that the model needs so many of them.

        It has room for an equal share of the layers with the caches of `SESSIONS`, if that is not
        enough for one layer more.
        """
        layers = ceil(LAYERS / computers)
        equal = self._footprint(layers, ends=True)
        more = self._footprint(layers + 1, ends=False)
        return min(equal.total + (SESSIONS - 1) * equal.cache, more.total - 1)

    def _footprint(self, layers: int, *, ends: bool) -> Footprint:
        return stage_footprint(
            self.config,
            range(layers),
            embedding=ends,
            head=ends,
            scheme=self.scheme,
            context=CONTEXT,
        )


@cache
def model(name: str, scheme: Scheme, folder: Path) -> Model:
    """Write the model of this name for this scheme below a folder; it is always the same."""
    variant, changes = MODELS[name]
    path = folder / f"{name}-{scheme}"
    transformers.utils.logging.disable_progress_bar()
    sizes = _SHAPE | {"intermediate_size": _WIDTH[scheme]}
    made = make_model(variant, path, changes=sizes | changes)
    save_byte_tokenizer(path)
    return Model(path, made.config, scheme)
