"""Make a Hugging Face `config.json` from what a GGUF file says of its model.

The names of fields are those of `gguf.constants.Keys`. llama.cpp's converter changes some things
when it writes a file, and llama.cpp knows some facts that no file states (`conversion/*.py` and
`src/models/*.cpp` of llama.cpp):

- in some families, the rows of queries and keys are interleaved (`interleaved_heads`);
- the norms of Gemma hold the whole factor, 1 + weight (`norms_are_whole`);
- Llama 3's rope scaling is stored as a tensor of factors; here it becomes long-context scaling with
  the same factors at every length;
- in Qwen3.5, the value heads of a delta net are in another order (`delta_net`), and its decays are
  stored as they are computed with;
- the attention scale of the largest Gemmas follows from their number of layers.
"""

import math
import re
from collections.abc import Mapping

from potluck.model.gguf.families import GgufFamily, family_of
from potluck.model.gguf.keys import Config, GgufFile, Keys
from potluck.model.gguf.words import END_TOKENS, end_tokens
from potluck.model.limits import MAX_EOS
from potluck.model.quantized import ROLES, MatrixRole

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
_MATRIX = re.compile(r"blk\.(\d{1,4})\.(\w+?)(?:_exps|_shexp|\.\d+)?\.weight")
_ROLES: Mapping[str, MatrixRole] = {
    "attn_q": "qkv", "attn_k": "qkv", "attn_v": "qkv", "attn_qkv": "qkv", "attn_output": "output",
    "attn_gate": "qkv", "ssm_in": "qkv", "ssm_out": "output",
    "attn_q_a": "qkv", "attn_q_b": "qkv", "attn_kv_a_mqa": "qkv",
    "ffn_gate": "gate_up", "ffn_up": "gate_up", "ffn_gate_up": "gate_up", "ffn_down": "down",
}  # fmt: skip
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight")
_MOST_MIXTURES = 4  # kinds of layers that differ in their finer matrices; each kind is measured


def read_gguf_config(file: GgufFile) -> Config:
    """The `config.json` of the model in a file.

    Raises:
        UnknownArchitectureError: Potluck does not know the model's family.
        InvalidConfigError: a field is missing, or has a wrong type or value.
    """
    keys = Keys(file)
    family = family_of(keys)
    size = keys.first if family.sizes_differ else keys.same
    heads = size("attention.head_count")
    hidden = keys.integer("embedding_length")
    if heads < 1:
        raise keys.invalid("attention.head_count", "must be at least 1")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if head_dim < 1:
        raise keys.invalid("attention.key_length", "must be at least 1")
    is_same = keys.integer("attention.value_length", head_dim) == head_dim
    if not (is_same or family.has_latents or family.narrow_values):
        raise keys.invalid("attention.value_length", "must be that of the keys")
    config: Config = {
        "architectures": [family.architecture],
        "vocab_size": keys.rows(_EMBEDDING),
        "hidden_size": hidden,
        # Mixtures without a dense layer may not say the size of one.
        "intermediate_size": size(
            "feed_forward_length", keys.integer("expert_feed_forward_length", 0) or None
        ),
        "num_hidden_layers": keys.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number(_norm_epsilon(keys)),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": _HEAD not in file.shapes,
        "attention_bias": "blk.0.attn_q.bias" in file.shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in file.shapes,
        "eos_token_id": _end_tokens(keys),
        "quantization_config": _quantization(file, family, keys.layers()),
    }
    if (scaling := _rope_scaling(keys, head_dim)) is not None:
        config["rope_scaling"] = scaling
    family.more(keys, config)
    return config


def _norm_epsilon(keys: Keys) -> str:
    layer_norm = "attention.layer_norm_epsilon"
    return layer_norm if layer_norm in keys else "attention.layer_norm_rms_epsilon"


def _quantization(file: GgufFile, family: GgufFamily, layers: int) -> Config:
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
        has_others = any(one in file.kinds.values() for one in _COARSE_KINDS if one != "Q4_K")
        more = {
            "finer": _finer(file, layers),
            "coarse_head": head in _COARSE_KINDS,
            "super_blocks": not has_others,
        }
    experts = {file.kinds[name] for name in file.shapes if _EXPERTS.fullmatch(name)}
    return more | {
        "mxfp4_experts": experts == {"MXFP4"},
        "quant_method": "gguf",
        "bits": bits or int(next((char for char in kind if char.isdecimal()), "8")),
        "sym": kind in ("Q4_0", "Q8_0"),
        "interleaved_heads": family.interleaved_heads,
        "norms_are_whole": family.norms_are_whole,
        "delta_net": family.delta_net,
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


def _end_tokens(keys: Keys) -> list[int]:
    """The ids of the tokens that end an answer: by the file's fields, and by their names."""
    found: set[int] = set()
    for name in ("eos", "eot", "eom"):
        value = keys.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int):
            found.add(value)
    tokens = keys.items("tokenizer.ggml.tokens")
    ends = end_tokens({token for token in tokens if isinstance(token, str)})
    found |= {index for index, token in enumerate(tokens) if token in ends}
    # A file may call what ends a message the end of the answer.
    found -= {index for index, token in enumerate(tokens) if token in END_TOKENS - ends}
    return sorted(found)[:MAX_EOS]


def _rope_scaling(keys: Keys, head_dim: int) -> Config | None:
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
