"""What a decoder is made of, read from its `config.json`.

`ModelConfig.from_dict` takes the dictionary as it stands in the file, also from a peer: whatever is
in it, the result is a config that holds together or a `ModelError` that names the field. Sizes are
bounded here, so that nobody downstream multiplies two numbers of a stranger.
Names of tensors are those of Hugging Face; both forms of the rotary fields are read (`rope_theta` and
`rope_scaling`, or since transformers 5 `rope_parameters`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.errors import UnknownArchitectureError
from potluck.model.families import FAMILIES, Family
from potluck.model.fields import Fields, invalid

# The largest known decoders have a hidden size of 18,432 (PaLM), 126 layers and 128 heads (Llama 3.1
# 405B), a vocabulary of 262,208 (Gemma 3) and 10 M positions (Llama 4); a few times that is no model.
MAX_HIDDEN = 1 << 16
MAX_INTERMEDIATE = 1 << 18
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_VOCAB = 1 << 21
MAX_POSITION = 1 << 24
MAX_EOS = 64  # Llama 3 has three
MAX_THETA = 1e12  # 10 M is the largest in use
MIN_FACTOR, MAX_FACTOR = 1e-3, 1e6  # of rotary scaling: 1 to 64 are in use

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Long wavelengths divided, short ones kept, those between blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864)."""

    theta: float = 10000.0
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape. Every value is checked; the fields of one config agree with each other."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: Rope
    sliding_windows: tuple[int | None, ...]  # of each layer: how many tokens it sees, None: all
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> "ModelConfig":
        """Read `config.json`.

        Raises:
            UnknownArchitectureError: the family is not one of `FAMILIES`.
            InvalidConfigError: a field is missing, of the wrong kind, or contradicts another.
        """
        fields = Fields(config)
        architecture = _architecture(fields)
        return _read(fields, architecture, FAMILIES[architecture])

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def layer_tensors(self, layer: int) -> dict[str, Shape]:
        """The tensors of one decoder layer: Hugging Face name and shape."""
        D, F = self.hidden_size, self.intermediate_size  # noqa: N806
        weights = {
            "self_attn.q_proj": ((self.q_size, D), self.qkv_bias),
            "self_attn.k_proj": ((self.kv_size, D), self.qkv_bias),
            "self_attn.v_proj": ((self.kv_size, D), self.qkv_bias),
            "self_attn.o_proj": ((D, self.q_size), self.output_bias),
            "mlp.gate_proj": ((F, D), self.mlp_bias),
            "mlp.up_proj": ((F, D), self.mlp_bias),
            "mlp.down_proj": ((D, F), self.mlp_bias),
        }
        prefix = f"model.layers.{layer}."
        tensors: dict[str, Shape] = {}
        for name, (shape, bias) in weights.items():
            tensors[f"{prefix}{name}.weight"] = shape
            if bias:
                tensors[f"{prefix}{name}.bias"] = shape[:1]
        norms = {"input_layernorm": D, "post_attention_layernorm": D}
        if self.qk_norm:
            norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        return tensors | {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}

    def embedding_tensors(self) -> dict[str, Shape]:
        return {EMBEDDING: (self.vocab_size, self.hidden_size)}

    def head_tensors(self) -> dict[str, Shape]:
        """Final norm and `lm_head`; a tied head reads the embedding's matrix."""
        matrix = EMBEDDING if self.tie_word_embeddings else LM_HEAD
        return {FINAL_NORM: (self.hidden_size,), matrix: (self.vocab_size, self.hidden_size)}

    def stage_tensors(
        self, layers: Iterable[int], *, embedding: bool, head: bool
    ) -> dict[str, Shape]:
        """All that a stage needs, each tensor once."""
        tensors = self.embedding_tensors() if embedding else {}
        for layer in layers:
            tensors |= self.layer_tensors(layer)
        return tensors | self.head_tensors() if head else tensors

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_size * itemsize


def _architecture(fields: Fields) -> str:
    names = list(fields.texts("architectures"))
    if not names:
        raise invalid("architectures", fields.value("architectures"), "must name the model's class")
    for name in names:
        if name in FAMILIES:
            return name
    # A peer's text may hold anything; what cannot be shown is spelt out.
    name = names[0][:80].encode("ascii", "backslashreplace").decode()
    raise UnknownArchitectureError(
        f"The model is of the architecture {name}, which Potluck cannot run yet."
        f" It can run: {', '.join(sorted(FAMILIES))}.",
        architecture=name,
    )


def _read(fields: Fields, architecture: str, family: Family) -> ModelConfig:
    if "quantization_config" in fields:
        raise invalid(
            "quantization_config",
            fields.value("quantization_config"),
            "must be absent: models"
            " that are already quantised cannot be read yet, take the original one",
        )
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise invalid("hidden_act", activation, "must be silu")
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    max_position = fields.integer(
        "max_position_embeddings", 1, MAX_POSITION, family.default_max_position
    )
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, family, heads),
        head_dim=_head_dim(fields, family, hidden, heads),
        max_position=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=_rope(fields, max_position),
        sliding_windows=_windows(fields, family, layers),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=_fact(fields, family.qkv_bias),
        output_bias=_fact(fields, family.output_bias),
        mlp_bias=_fact(fields, family.mlp_bias),
        qk_norm=family.qk_norm,
        eos_token_ids=fields.integers("eos_token_id", 0, MAX_VOCAB, MAX_EOS),
    )


def _fact(fields: Fields, fact: bool | str) -> bool:
    return fields.flag(fact, False) if isinstance(fact, str) else fact


def _kv_heads(fields: Fields, family: Family, heads: int) -> int:
    default = family.default_kv_heads or heads
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, default)
    if heads % kv_heads:
        raise invalid("num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}")
    return kv_heads


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    if "head_dim" not in fields and family.default_head_dim is None and hidden % heads:
        raise invalid("hidden_size", hidden, f"must be a multiple of num_attention_heads = {heads}")
    default = family.default_head_dim or hidden // heads
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, default)
    if head_dim % 2:
        raise invalid("head_dim", head_dim, "must be even, since rotary embedding turns pairs")
    return head_dim


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """Which layers see only so many tokens back, and how many."""
    if not family.has_window or (
        family.window_switch is not None and not fields.flag(family.window_switch, False)
    ):
        return (None,) * layers
    # `"sliding_window": null` switches it off; only a missing field takes the default.
    if fields.is_null("sliding_window"):
        return (None,) * layers
    window = fields.integer("sliding_window", 1, MAX_POSITION, family.default_window)
    if family.window_layers is None:
        return (window,) * layers
    if "layer_types" in fields:
        return tuple(_window_of(kind, window) for kind in _layer_types(fields, layers))
    first = fields.integer(family.window_layers, 0, MAX_LAYERS, 28)
    return tuple(window if layer >= first else None for layer in range(layers))


def _layer_types(fields: Fields, layers: int) -> list[str]:
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != layers:
        raise invalid("layer_types", len(kinds), f"must have one entry for each of {layers} layers")
    return kinds


def _window_of(kind: str, window: int) -> int | None:
    match kind:
        case "sliding_attention":
            return window
        case "full_attention":
            return None
        case _:
            raise invalid("layer_types", kind, "must be full_attention or sliding_attention")


def _rope(fields: Fields, max_position: int) -> Rope:
    theta = fields.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    if name not in fields:
        return Rope(theta=theta)
    parameters = fields.fields(name)
    theta = parameters.number("rope_theta", 1.0, MAX_THETA, theta)
    # The first configs with scaling called the field `type`.
    key = "rope_type" if "rope_type" in parameters else "type"
    match parameters.text(key, "default"):
        case "default":
            return Rope(theta=theta)
        case "linear":
            factor = parameters.number("factor", MIN_FACTOR, MAX_FACTOR)
            return Rope(theta=theta, scaling=LinearScaling(factor=factor))
        case "llama3":
            return Rope(theta=theta, scaling=_llama3(parameters, max_position))
        case kind:
            raise invalid(parameters.path(key), kind, "must be default, linear or llama3")


def _llama3(parameters: Fields, max_position: int) -> Llama3Scaling:
    low = parameters.number("low_freq_factor", MIN_FACTOR, MAX_FACTOR)
    high = parameters.number("high_freq_factor", MIN_FACTOR, MAX_FACTOR)
    if high <= low:
        raise invalid(
            parameters.path("high_freq_factor"), high, f"must be above low_freq_factor = {low:g}"
        )
    return Llama3Scaling(
        factor=parameters.number("factor", MIN_FACTOR, MAX_FACTOR),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=parameters.integer(
            "original_max_position_embeddings", 1, MAX_POSITION, max_position
        ),
    )
