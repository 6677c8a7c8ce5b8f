"""The config that a small GGUF file says, whose fields a test changes."""

from typing import Any

from potluck.model.config import ModelConfig
from potluck.model.gguf.config import read_gguf_config
from potluck.model.gguf.keys import GgufFile

SIZES: dict[str, object] = {
    "context_length": 4096,
    "embedding_length": 64,
    "block_count": 4,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 9.999999747378752e-06,  # what f32 makes of 1e-5
    "rope.freq_base": 500000.0,
}
SHAPES = {"token_embd.weight": (320, 64), "blk.0.ffn_up.weight": (96, 64)}


def read_gguf(
    architecture: str = "llama",
    *,
    shapes: dict[str, tuple[int, ...]] | None = None,
    kinds: dict[str, str] | None = None,
    factors: dict[str, tuple[float, ...]] | None = None,
    tokenizer: dict[str, object] | None = None,
    **changes: object,
) -> tuple[dict[str, Any], ModelConfig]:
    sizes = SIZES | {name.replace("__", "."): value for name, value in changes.items()}
    metadata: dict[str, object] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{k}": v for k, v in sizes.items() if v is not None}
    metadata |= {f"tokenizer.ggml.{k}": v for k, v in (tokenizer or {}).items()}
    shapes = SHAPES | (shapes or {})
    found = dict.fromkeys(shapes, "F16") | (kinds or {})
    file = GgufFile(metadata=metadata, shapes=shapes, kinds=found, factors=factors or {})
    raw = read_gguf_config(file)
    return raw, ModelConfig.from_dict(raw)
