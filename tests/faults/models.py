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
from potluck.model.footprint import stage_footprint
from potluck.model.schemes import Scheme

CONTEXT = 384
LAYERS = 12
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,  # caches are small beside the weights, which make the plan then
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
# The variant of `model_variants.py`, and what differs from it.
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
    """A model on disk."""

    folder: Path
    config: ModelConfig

    def share_bytes(self, scheme: Scheme, computers: int, sessions: int) -> int:
        """The memory that each computer lends, so that the model needs so many of them.

        Args:
            scheme: how the weights are held.
            computers: most that are needed; with one computer less, the model does not fit.
            sessions: conversations that are under way at a time.
        """
        part = stage_footprint(
            self.config,
            range(ceil(LAYERS / computers)),
            embedding=True,
            head=True,
            scheme=scheme,
            context=CONTEXT,
        )
        return part.total + (sessions - 1) * part.cache


@cache
def model(name: str, folder: Path) -> Model:
    """Write the model of this name into a folder below this one; it is always the same."""
    variant, changes = MODELS[name]
    transformers.utils.logging.disable_progress_bar()
    made = make_model(variant, folder / name, changes=_SHAPE | changes)
    save_byte_tokenizer(folder / name)
    return Model(folder / name, made.config)
