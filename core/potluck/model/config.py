"""What a decoder is made of, read from its `config.json`.

`ModelConfig.from_dict` takes the dictionary as it stands in the file, also from a peer: whatever is
in it, the result is a config that holds together or a `ModelError` that names the field. Sizes are
bounded here, so that nobody downstream multiplies two numbers of a stranger.
Names of tensors are those of Hugging Face. `families.py` says what differs between families,
`rope.py` and `layers.py` read what differs between layers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from potluck.errors import UnknownArchitectureError
from potluck.model.families import FAMILIES, Family, NormPlacement, QkNorm
from potluck.model.fields import Fields, invalid
from potluck.model.layers import (
    Experts,
    LayerKind,
    read_expert_layers,
    read_experts,
    read_windows,
)
from potluck.model.limits import (
    MAX_EOS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_MULTIPLIER,
    MAX_POSITION,
    MAX_VOCAB,
)
from potluck.model.quantized import Quantization, read_quantization
from potluck.model.rope import Ropes, read_ropes

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

Activation = Literal["silu", "gelu_pytorch_tanh"]

_NORMS: Mapping[NormPlacement, tuple[str, ...]] = {
    "before": ("input_layernorm", "post_attention_layernorm"),
    "after": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "around": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape. Every value is checked; the fields of one config agree with each other."""

    architecture: str
    prefix: str  # of the names of all tensors, where the decoder is a part of a model
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    activation: Activation
    ropes: Ropes
    sliding_windows: tuple[int | None, ...]  # of each layer: how many tokens it sees, None: all
    experts: Experts | None
    expert_layers: tuple[bool, ...]  # of each layer: whether it has experts in place of an MLP
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    fused: bool  # whether files have queries, keys and values in one matrix, and gate and up
    norms: NormPlacement
    unit_offset: bool  # norms multiply by 1 + weight
    qk_norm: QkNorm | None
    attention_scale: float  # of queries times keys
    attention_softcap: float | None
    logits_softcap: float | None
    embedding_multiplier: float
    residual_multiplier: float  # of what a layer adds
    logits_divisor: float
    exceeds_f16: bool  # hidden states do, which bf16 holds
    eos_token_ids: tuple[int, ...]
    quantization: Quantization | None  # how files hold the matrices; None: as plain numbers

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

    @property
    def embedding_name(self) -> str:
        return self.prefix + EMBEDDING

    @property
    def final_norm_name(self) -> str:
        return self.prefix + FINAL_NORM

    @property
    def head_name(self) -> str:
        """The matrix of logits; a tied head reads the embedding's."""
        return self.prefix + (EMBEDDING if self.tie_word_embeddings else LM_HEAD)

    @property
    def norm_names(self) -> tuple[str, ...]:
        """A layer's norms in the order in which a token passes them."""
        return _NORMS[self.norms]

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Of each layer, what its cost depends on."""
        stored = self.quantization
        return tuple(
            LayerKind(
                window=self.sliding_windows[layer],
                experts=self.expert_layers[layer],
                finer=frozenset() if stored is None else stored.higher_precision_roles(layer),
            )
            for layer in range(self.num_layers)
        )

    def layer_prefix(self, layer: int) -> str:
        return f"{self.prefix}model.layers.{layer}."

    def layer_tensors(self, layer: int) -> dict[str, Shape]:
        """The tensors of one decoder layer: Hugging Face name and shape."""
        prefix = self.layer_prefix(layer)
        tensors: dict[str, Shape] = {}
        for name, shape, bias in self._matrices(layer):
            tensors[f"{prefix}{name}.weight"] = shape
            if bias:
                tensors[f"{prefix}{name}.bias"] = shape[:1]
        norms = dict.fromkeys(self.norm_names, self.hidden_size)
        if self.qk_norm == "head":
            norms |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), self.head_dim)
        elif self.qk_norm == "projection":
            norms |= {"self_attn.q_norm": self.q_size, "self_attn.k_norm": self.kv_size}
        return tensors | {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}

    def is_router(self, name: str) -> bool:
        """Whether a tensor is the matrix that chooses the experts of a layer."""
        return self.experts is not None and name.endswith(
            f".{self.experts.facts.block}.gate.weight"
        )

    def is_of_expert(self, name: str) -> bool:
        """Whether a tensor is a matrix of one of the experts of a layer."""
        return self.experts is not None and f".{self.experts.facts.block}.experts." in name

    def embedding_tensors(self) -> dict[str, Shape]:
        return {self.embedding_name: (self.vocab_size, self.hidden_size)}

    def head_tensors(self) -> dict[str, Shape]:
        """Final norm and `lm_head`."""
        return {
            self.final_norm_name: (self.hidden_size,),
            self.head_name: (self.vocab_size, self.hidden_size),
        }

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

    def _matrices(self, layer: int) -> Iterator[tuple[str, Shape, bool]]:
        """Name, shape, and whether it has a bias."""
        D = self.hidden_size  # noqa: N806
        if self.fused:
            yield "self_attn.qkv_proj", (self.q_size + 2 * self.kv_size, D), self.qkv_bias
        else:
            yield "self_attn.q_proj", (self.q_size, D), self.qkv_bias
            yield "self_attn.k_proj", (self.kv_size, D), self.qkv_bias
            yield "self_attn.v_proj", (self.kv_size, D), self.qkv_bias
        yield "self_attn.o_proj", (D, self.q_size), self.output_bias
        if self.experts is not None and self.expert_layers[layer]:
            yield from _expert_matrices(self.experts, D)
            return
        F = self.intermediate_size  # noqa: N806
        if self.fused:
            yield "mlp.gate_up_proj", (2 * F, D), self.mlp_bias
        else:
            yield "mlp.gate_proj", (F, D), self.mlp_bias
            yield "mlp.up_proj", (F, D), self.mlp_bias
        yield "mlp.down_proj", (D, F), self.mlp_bias


def _expert_matrices(experts: Experts, hidden: int) -> Iterator[tuple[str, Shape, bool]]:
    facts, size = experts.facts, experts.intermediate_size
    yield f"{facts.block}.gate", (experts.count, hidden), False
    for expert in range(experts.count):
        name = f"{facts.block}.experts.{expert}."
        yield name + facts.gate, (size, hidden), False
        yield name + facts.up, (size, hidden), False
        yield name + facts.down, (hidden, size), False


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


def _read(whole: Fields, architecture: str, family: Family) -> ModelConfig:
    fields = whole
    if family.text_config:
        fields = whole.fields("text_config")
        if "eos_token_id" in whole:
            fields = fields.having({"eos_token_id": whole.value("eos_token_id")})
    for name, requirement in _ABSENT.items():
        if value := whole.value(name) or fields.value(name):
            raise invalid(name, value, requirement)
    quantization = read_quantization(whole if "quantization_config" in whole else fields)
    norms_are_whole = quantization is not None and quantization.norms_are_whole
    fields = fields.over(family.defaults)
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    max_position = fields.integer("max_position_embeddings", 1, MAX_POSITION, 32768)
    head_dim = _head_dim(fields, hidden, heads)
    windows = read_windows(fields, family, layers)
    experts = read_experts(fields, family)
    return ModelConfig(
        architecture=architecture,
        prefix="language_model." if family.text_config else "",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        activation=_activation(fields, family),
        ropes=read_ropes(
            fields, family, head_dim=head_dim, max_position=max_position, windows=windows
        ),
        sliding_windows=windows,
        experts=experts,
        expert_layers=read_expert_layers(fields, experts, layers),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=_fact(fields, family.qkv_bias),
        output_bias=_fact(fields, family.output_bias),
        mlp_bias=_fact(fields, family.mlp_bias),
        fused=family.fused,
        norms=family.norms,
        unit_offset=family.unit_offset and not norms_are_whole,
        qk_norm=family.qk_norm,
        attention_scale=_attention_scale(fields, family, head_dim),
        attention_softcap=_softcap(fields, family.attention_softcap),
        logits_softcap=_softcap(fields, family.logits_softcap),
        embedding_multiplier=math.sqrt(hidden)
        if family.root_embedding
        else _multiplier(fields, family.embedding_multiplier),
        residual_multiplier=_multiplier(fields, family.residual_multiplier),
        logits_divisor=_multiplier(fields, family.logits_divisor),
        exceeds_f16=family.exceeds_f16,
        eos_token_ids=fields.integers("eos_token_id", 0, MAX_VOCAB, MAX_EOS),
        quantization=quantization,
    )


_ABSENT = {
    "use_bidirectional_attention": "must be absent: a model that looks ahead cannot write text",
}


def _fact(fields: Fields, fact: bool | str) -> bool:
    return fields.flag(fact, False) if isinstance(fact, str) else fact


def _multiplier(fields: Fields, name: str | None) -> float:
    return 1.0 if name is None else fields.number(name, 0.0, MAX_MULTIPLIER, 1.0)


def _softcap(fields: Fields, name: str | None) -> float | None:
    if name is None or name not in fields:
        return None
    return fields.number(name, 0.0, MAX_MULTIPLIER)


def _attention_scale(fields: Fields, family: Family, head_dim: int) -> float:
    if family.attention_multiplier is not None:
        return _multiplier(fields, family.attention_multiplier)
    scalar = float(head_dim)
    if family.query_scalar is not None:
        scalar = fields.number(family.query_scalar, 0.0, MAX_MULTIPLIER)
    return scalar**-0.5


def _activation(fields: Fields, family: Family) -> Activation:
    match fields.text(family.activation, "silu"):
        case "silu":
            return "silu"
        case "gelu_pytorch_tanh":
            return "gelu_pytorch_tanh"
        case other:
            raise invalid(family.activation, other, "must be silu or gelu_pytorch_tanh")


def _kv_heads(fields: Fields, heads: int) -> int:
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise invalid("num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}")
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if "head_dim" not in fields and hidden % heads:
        raise invalid("hidden_size", hidden, f"must be a multiple of num_attention_heads = {heads}")
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, hidden // heads)
    if head_dim % 2:
        raise invalid("head_dim", head_dim, "must be even, since rotary embedding turns pairs")
    return head_dim
