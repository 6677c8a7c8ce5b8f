"""Make a Hugging Face `config.json` from what a GGUF file says of its model.

The names of fields are those of `gguf.constants.Keys`. llama.cpp's converter changes some things
when it writes a file, and llama.cpp knows some facts that no file states (`conversion/*.py` and
`src/models/*.cpp` of llama.cpp):

- in some families, the rows of queries and keys are interleaved (`interleaved_heads`);
- the norms of Gemma hold the whole factor, 1 + weight (`norms_are_whole`);
- Llama 3's rope scaling is stored as a tensor of factors; here it becomes long-context scaling with
  the same factors at every length;
- the attention scale of the largest Gemmas follows from their number of layers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from potluck.errors import InvalidConfigError
from potluck.model.fields import unknown_architecture
from potluck.model.gguf_words import END_TOKENS
from potluck.model.limits import MAX_EOS, MAX_LAYERS
from potluck.model.quantized import ROLES, MatrixRole

Config = dict[str, object]

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
FREQUENCIES, LONG_FACTORS, SHORT_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
FACTORS = (FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)
"""Tensors whose numbers belong in the config."""

_OFFSET_KINDS = ("Q4_1", "Q4_K")  # 4 bits; each group of 32 has a scale and an offset
_COARSE_KINDS = (*_OFFSET_KINDS, "Q4_0")  # Q4_0 fits too: its offset is always the middle
_MATRIX = re.compile(r"blk\.(\d{1,4})\.(\w+?)(?:_exps|\.\d+)?\.weight")
_ROLES: Mapping[str, MatrixRole] = {
    "attn_q": "qkv", "attn_k": "qkv", "attn_v": "qkv", "attn_qkv": "qkv", "attn_output": "output",
    "ffn_gate": "gate_up", "ffn_up": "gate_up", "ffn_down": "down",
}  # fmt: skip
_MOST_MIXTURES = 4  # kinds of layers that differ in their finer matrices; each kind is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The contents of a GGUF file that the config is made from."""

    metadata: Mapping[str, object]
    shapes: Mapping[str, tuple[int, ...]]  # of all tensors
    kinds: Mapping[str, str]  # their types, such as Q4_K and F16
    factors: Mapping[str, tuple[float, ...]]  # the numbers of those tensors of FACTORS that exist


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    architecture: str
    interleaved_heads: bool = False
    norms_are_whole: bool = False
    more: Callable[["_Keys", Config], None] = lambda keys, config: None


def read_gguf_config(file: GgufFile) -> Config:
    """The `config.json` of the model in a file.

    Raises:
        UnknownArchitectureError: Potluck does not know the model's family.
        InvalidConfigError: a field is missing, or has a wrong type or value.
    """
    keys = _Keys(file)
    family = _family(keys)
    heads = keys.same("attention.head_count")
    hidden = keys.integer("embedding_length")
    if heads < 1:
        raise keys.invalid("attention.head_count", "must be at least 1")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if head_dim < 1:
        raise keys.invalid("attention.key_length", "must be at least 1")
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys.invalid("attention.value_length", "must be that of the keys")
    config: Config = {
        "architectures": [family.architecture],
        "vocab_size": keys.rows(_EMBEDDING),
        "hidden_size": hidden,
        "intermediate_size": keys.same("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.same("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": _HEAD not in file.shapes,
        "attention_bias": "blk.0.attn_q.bias" in file.shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.shapes,
        "eos_token_id": _end_tokens(keys),
        "quantization_config": _quantization(file, family, keys.integer("block_count")),
    }
    if (scaling := _rope_scaling(keys, head_dim)) is not None:
        config["rope_scaling"] = scaling
    family.more(keys, config)
    return config


class _Keys:
    """The fields of a file. The names of its architecture's fields come without the prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        found = file.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise self.invalid("general.architecture", "must name the model's family", whole=True)
        self.architecture = found

    def __contains__(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.file.metadata

    def integer(self, name: str, default: int | None = None) -> int:
        return self._whole(name, self._value(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """A number, rounded to the digits that an f32 has: 0.00001 and not 9.99999974e-06."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, "must be a number")
        return float(f"{value:.7g}") if math.isfinite(value) else float(value)

    def same(self, name: str, default: int | None = None) -> int:
        """A whole number; the file may list it once for each layer, but all must be equal."""
        value = self._value(name, default)
        if isinstance(value, list):
            values = set(cast("list[object]", value))
            if len(values) != 1:
                raise self.invalid(name, "must be the same for all layers")
            value = values.pop()
        return self._whole(name, value)

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.invalid(name, "must be text")
        return value

    def items(self, name: str) -> Sequence[object]:
        """The entries of a list, empty if there is none; `name` is the field's whole name."""
        value = self.file.metadata.get(name)
        return cast("list[object]", value) if isinstance(value, list) else ()

    def rows(self, tensor: str) -> int:
        shape = self.file.shapes.get(tensor)
        if shape is None or len(shape) != 2:
            raise self.invalid(tensor, "must be there, as a matrix", whole=True)
        return shape[0]

    def invalid(self, name: str, requirement: str, *, whole: bool = False) -> InvalidConfigError:
        field = name if whole else f"{self.architecture}.{name}"
        return InvalidConfigError(
            f"The GGUF file's {field} {requirement}. The file is damaged or not of a model that"
            " Potluck can run.",
            field=field,
        )

    def _whole(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, "must be a whole number")
        return value

    def _value(self, name: str, default: object) -> object:
        value = self.file.metadata.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise self.invalid(name, "is missing")
        return value


def _family(keys: _Keys) -> _Family:
    name = keys.architecture
    if name == "llama" and keys.integer("expert_count", 0):
        name = "mixtral"
    if name == "olmo2" and "attention.sliding_window" in keys:
        name = "olmo3"  # its files say olmo2 too
    if (family := _FAMILIES.get(name)) is not None:
        return family
    raise unknown_architecture("The GGUF file's model", name, _FAMILIES)


def _quantization(file: GgufFile, family: _Family, layers: int) -> Config:
    """The `quantization_config`: how most of the weights are stored."""
    weights: dict[str, int] = {}
    for name, shape in file.shapes.items():
        if len(shape) > 1:
            kind = file.kinds[name]
            weights[kind] = weights.get(kind, 0) + math.prod(shape)
    kind = max(weights, key=lambda kind: weights[kind], default="F32")
    bits = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}.get(kind)
    more: Config = {}
    if kind in _OFFSET_KINDS:
        head = file.kinds[_HEAD if _HEAD in file.kinds else _EMBEDDING]
        more = {"finer": _finer(file, layers), "coarse_head": head in _COARSE_KINDS}
    return more | {
        "quant_method": "gguf",
        "bits": bits or int(next((char for char in kind if char.isdecimal()), "8")),
        "sym": kind in ("Q4_0", "Q8_0"),
        "interleaved_heads": family.interleaved_heads,
        "norms_are_whole": family.norms_are_whole,
    }


def _finer(file: GgufFile, layers: int) -> dict[str, list[int]]:
    """For each role, the layers where its matrices do not fit exactly into 4 bits and an offset."""
    finer: dict[int, set[MatrixRole]] = {}
    for name, kind in file.kinds.items():
        found = _MATRIX.fullmatch(name)
        if found is None or found[2] not in _ROLES or int(found[1]) >= layers:
            continue
        roles = finer.setdefault(int(found[1]), set())
        if kind not in _COARSE_KINDS:
            roles.add(_ROLES[found[2]])
    if len({frozenset(roles) for roles in finer.values()}) > _MOST_MIXTURES:
        anywhere = set[MatrixRole]().union(*finer.values())
        finer = dict.fromkeys(finer, anywhere)
    return {
        role: sorted(layer for layer, roles in finer.items() if role in roles) for role in ROLES
    }


def _end_tokens(keys: _Keys) -> list[int]:
    """The ids of the tokens that end an answer: by the file's fields, and by their names."""
    found: set[int] = set()
    for name in ("eos", "eot", "eom"):
        value = keys.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int):
            found.add(value)
    tokens = keys.items("tokenizer.ggml.tokens")
    found |= {index for index, token in enumerate(tokens) if token in END_TOKENS}
    return sorted(found)[:MAX_EOS]


def _rope_scaling(keys: _Keys, head_dim: int) -> Config | None:
    factors = keys.file.factors
    context = keys.integer("context_length")
    original = keys.integer("rope.scaling.original_context_length", context)
    if LONG_FACTORS in factors and SHORT_FACTORS in factors:
        scaling: Config = {
            "rope_type": "longrope",
            "long_factor": list(factors[LONG_FACTORS]),
            "short_factor": list(factors[SHORT_FACTORS]),
            "original_max_position_embeddings": original,
        }
        if "rope.scaling.attn_factor" in keys:
            scaling["attention_factor"] = keys.number("rope.scaling.attn_factor")
        return scaling
    if FREQUENCIES in factors:
        return {
            "rope_type": "longrope",
            "long_factor": list(factors[FREQUENCIES]),
            "short_factor": list(factors[FREQUENCIES]),
            "original_max_position_embeddings": context,
            "attention_factor": 1.0,
        }
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    match kind:
        case "linear" | "none" if factor == 1.0:
            return None
        case "linear" | "none":
            return {"rope_type": "linear", "factor": factor}
        case "yarn":
            scaling = {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
            for name in ("beta_fast", "beta_slow"):
                if f"rope.scaling.yarn_{name}" in keys:
                    scaling[name] = keys.number(f"rope.scaling.yarn_{name}")
            return scaling
        case "longrope":
            return None  # the file has no factors, so nothing is scaled
        case _:
            raise keys.invalid("rope.scaling.type", "must be none, linear, yarn or longrope")


def _mixtral(keys: _Keys, config: Config) -> None:
    config["num_local_experts"] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    config["sliding_window"] = None


def _qwen3_experts(keys: _Keys, config: Config) -> None:
    config["num_experts"] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    config["moe_intermediate_size"] = keys.integer("expert_feed_forward_length")
    config["norm_topk_prob"] = True  # llama.cpp always normalises (src/models/qwen3moe.cpp)


def _phi3(keys: _Keys, config: Config) -> None:
    head = cast("int", config["head_dim"])
    turned = keys.integer("rope.dimension_count", head)
    if turned != head:
        config["partial_rotary_factor"] = (turned + 0.5) / head  # the reader rounds down
    # In Phi-4, 0 means that there is no window.
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    config["original_max_position_embeddings"] = original


def _gemma(keys: _Keys, config: Config, *, largest: int) -> None:
    """Set attention scale and window; with `largest` layers the scale is by hidden size / heads."""
    hidden, heads = cast("int", config["hidden_size"]), cast("int", config["num_attention_heads"])
    is_largest = config["num_hidden_layers"] == largest
    config["query_pre_attn_scalar"] = hidden // heads if is_largest else config["head_dim"]
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None


def _gemma2(keys: _Keys, config: Config) -> None:
    _gemma(keys, config, largest=46)
    config["attn_logit_softcapping"] = keys.number("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = keys.number("final_logit_softcapping", 30.0)


def _gemma3(keys: _Keys, config: Config) -> None:
    _gemma(keys, config, largest=62)
    if "final_logit_softcapping" in keys:
        config["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    config["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    if "attention.sliding_window_pattern" in keys:
        _windows(keys, config)


def _olmo3(keys: _Keys, config: Config) -> None:
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    if "attention.sliding_window_pattern" in keys:
        _windows(keys, config)


def _seed_oss(keys: _Keys, config: Config) -> None:
    config["attention_out_bias"] = "blk.0.attn_output.bias" in keys.file.shapes


def _mistral3(keys: _Keys, config: Config) -> None:
    scaling = cast("Config | None", config.pop("rope_scaling", None))
    if scaling is None:  # Mistral Small 3 and its like
        config["architectures"] = ["MistralForCausalLM"]
        config["sliding_window"] = None
        return
    if "rope.scaling.yarn_log_multiplier" in keys:
        scaling["attention_factor"] = 1.0  # as its two magnitudes are equal
    if "attention.temperature_scale" in keys:
        scaling["llama_4_scaling_beta"] = keys.number("attention.temperature_scale")
    config["rope_parameters"] = scaling | {"rope_theta": config["rope_theta"]}


def _granite(keys: _Keys, config: Config) -> None:
    for name, key in (
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ):
        config[name] = keys.number(key, 1.0)


def _exaone4(keys: _Keys, config: Config) -> None:
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    if "attention.sliding_window_pattern" in keys:
        _windows(keys, config)


def _windows(keys: _Keys, config: Config) -> None:
    """Set which layers have a window: by a flag for each, or by a number n: each n-th has none."""
    name = f"{keys.architecture}.attention.sliding_window_pattern"
    pattern = keys.file.metadata[name]
    if not isinstance(pattern, list):
        config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern")
        return
    flags = cast("list[object]", pattern)[:MAX_LAYERS]
    config["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in flags]


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(architecture="LlamaForCausalLM", interleaved_heads=True),
    "mixtral": _Family(architecture="MixtralForCausalLM", interleaved_heads=True, more=_mixtral),
    "qwen2": _Family(architecture="Qwen2ForCausalLM"),
    "qwen3": _Family(architecture="Qwen3ForCausalLM"),
    "qwen3moe": _Family(architecture="Qwen3MoeForCausalLM", more=_qwen3_experts),
    "phi3": _Family(architecture="Phi3ForCausalLM", more=_phi3),
    "gemma": _Family(architecture="GemmaForCausalLM", norms_are_whole=True),
    "gemma2": _Family(architecture="Gemma2ForCausalLM", norms_are_whole=True, more=_gemma2),
    "gemma3": _Family(architecture="Gemma3ForCausalLM", norms_are_whole=True, more=_gemma3),
    "olmo2": _Family(architecture="Olmo2ForCausalLM"),
    "olmo3": _Family(architecture="Olmo3ForCausalLM", more=_olmo3),
    "seed_oss": _Family(architecture="SeedOssForCausalLM", more=_seed_oss),
    "mistral3": _Family(
        architecture="Ministral3ForCausalLM", interleaved_heads=True, more=_mistral3
    ),
    "granite": _Family(architecture="GraniteForCausalLM", interleaved_heads=True, more=_granite),
    "smollm3": _Family(architecture="SmolLM3ForCausalLM", interleaved_heads=True),
    "exaone4": _Family(architecture="Exaone4ForCausalLM", more=_exaone4),
}
GGUF_ARCHITECTURES = frozenset(_FAMILIES) - {"mixtral", "olmo3"}
"""The names that GGUF files have for the families that can be run; Mixtral's is llama, OLMo 3's olmo2."""
