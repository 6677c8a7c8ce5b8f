"""What each family of decoders does in its own way: the one table of such facts.

A family is a row of values, or of names of `config.json` fields that hold the value; nothing else in
the code asks which family a model is of. What a field is when it is missing is what `transformers`
takes (`models/*/configuration_*.py`), since that is what the weights were made with.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A `str` names the field of `config.json` that says whether; a `bool` is the answer itself."""

    qkv_bias: bool | str = False  # on q_proj, k_proj and v_proj
    output_bias: bool | str = False  # on o_proj
    mlp_bias: bool | str = False  # on gate_proj, up_proj and down_proj
    qk_norm: bool = False  # RMSNorm over each head's queries and keys, before rotary
    window_switch: str | None = None  # the field that must be true for `sliding_window` to count
    window_layers: str | None = (
        None  # the field with the first layer that has a window; None: all have
    )
    default_window: int | None = None
    default_kv_heads: int | None = None  # None: as many as query heads
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    default_max_position: int = 32768
    has_window: bool = False


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        default_max_position=2048,
    ),
    "MistralForCausalLM": Family(
        has_window=True,
        default_window=4096,
        default_kv_heads=8,
        default_max_position=131072,
    ),
    "Qwen2ForCausalLM": Family(
        qkv_bias=True,
        has_window=True,
        window_switch="use_sliding_window",
        window_layers="max_window_layers",
        default_window=4096,
        default_kv_heads=32,
    ),
    "Qwen3ForCausalLM": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        has_window=True,
        window_switch="use_sliding_window",
        window_layers="max_window_layers",
        default_window=4096,
        default_kv_heads=32,
        default_head_dim=128,
    ),
}
