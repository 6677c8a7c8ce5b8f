"""What a decoder is made of, read from its `config.json`.

`ModelConfig.from_dict` takes the dictionary as it is in the file. It may come from a peer: whatever
it contains, the result is a consistent config, or a `ModelError` that names the field. Sizes are
bounded here, so that nobody multiplies two unchecked numbers later. Names of tensors are those of
Hugging Face. `families.py` says what differs between families, `rope.py` and `layers.py` read what
differs between layers. `ModelConfig.layers` has what each layer is made of.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from potluck.errors import UnknownArchitectureError
from potluck.model.families import FAMILIES, Activation, Family, LayerNorms, QkNormKind
from potluck.model.fields import Fields, invalid
from potluck.model.layers import (
    AttentionSpec,
    DenseSpec,
    Experts,
    LayerKind,
    LayerSpec,
    MoeSpec,
    Projection,
    layer_kind,
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
from potluck.model.quantized import Quantization, Shape, read_quantization
from potluck.model.rope import Ropes, read_ropes

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The config of a model. Every value is checked, and the values agree with each other."""

    architecture: str
    prefix: str  # of all names of tensors, if the decoder is part of a larger model
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
    sliding_windows: tuple[
        int | None, ...
    ]  # for each layer how many tokens a query sees; None: all
    experts: Experts | None
    expert_layers: tuple[bool, ...]  # for each layer whether it is a MoE
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    fused: bool  # files have queries, keys and values in one matrix, and gates and ups in one
    norms: LayerNorms[str]  # where a layer has norms, and what files call them
    unit_offset: bool  # norms multiply by 1 + weight
    qk_norm: QkNormKind | None
    attention_scale: float  # of the products of queries and keys
    attention_softcap: float | None
    logits_softcap: float | None
    embedding_multiplier: float
    residual_multiplier: float  # of what a layer adds
    logits_divisor: float
    exceeds_f16: bool  # hidden states may exceed f16, though not bf16
    eos_token_ids: tuple[int, ...]
    quantization: Quantization | None  # how files hold the matrices; None: plain numbers
    layers: tuple[LayerSpec, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _layer_specs(self))

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
        """The name of the head's matrix; with tied embeddings it is the embedding's."""
        return self.prefix + (EMBEDDING if self.tie_word_embeddings else LM_HEAD)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """For each layer its kind: layers of equal kinds cost the same."""
        stored = self.quantization
        return tuple(
            layer_kind(
                spec, frozenset() if stored is None else stored.higher_precision_roles(layer)
            )
            for layer, spec in enumerate(self.layers)
        )

    def layer_prefix(self, layer: int) -> str:
        return f"{self.prefix}model.layers.{layer}."

    def layer_tensors(self, layer: int) -> dict[str, Shape]:
        """Names and shapes of all tensors of one layer."""
        prefix = self.layer_prefix(layer)
        return {prefix + name: shape for name, shape in self.layers[layer].tensors().items()}

    def is_router(self, name: str) -> bool:
        """Whether a tensor is the router of a MoE."""
        return self.experts is not None and name.endswith(
            f".{self.experts.facts.block}.gate.weight"
        )

    def is_of_expert(self, name: str) -> bool:
        """Whether a tensor belongs to one expert of a MoE."""
        return self.experts is not None and f".{self.experts.facts.block}.experts." in name

    def embedding_tensors(self) -> dict[str, Shape]:
        return {self.embedding_name: (self.vocab_size, self.hidden_size)}

    def head_tensors(self) -> dict[str, Shape]:
        """Names and shapes of final norm and head."""
        return {
            self.final_norm_name: (self.hidden_size,),
            self.head_name: (self.vocab_size, self.hidden_size),
        }

    def stage_tensors(
        self, layers: Iterable[int], *, embedding: bool, head: bool
    ) -> dict[str, Shape]:
        """Names and shapes of all that a stage needs, each tensor once."""
        tensors = self.embedding_tensors() if embedding else {}
        for layer in layers:
            tensors |= self.layer_tensors(layer)
        return tensors | self.head_tensors() if head else tensors

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in one layer, if each number has `itemsize` bytes."""
        return 2 * self.kv_size * itemsize


def _layer_specs(config: ModelConfig) -> tuple[LayerSpec, ...]:
    """What each layer of the model is made of."""
    dense, moe = _dense(config), None
    if config.experts is not None:
        moe = MoeSpec(
            hidden_size=config.hidden_size, experts=config.experts, activation=config.activation
        )
    return tuple(
        LayerSpec(
            hidden_size=config.hidden_size,
            mixer=_attention(config, layer),
            feed_forward=moe if moe is not None and config.expert_layers[layer] else dense,
            norms=config.norms,
            norm_eps=config.rms_norm_eps,
            residual_multiplier=config.residual_multiplier,
        )
        for layer in range(config.num_layers)
    )


def _attention(config: ModelConfig, layer: int) -> AttentionSpec:
    rope = config.ropes.layers[layer]
    return AttentionSpec(
        hidden_size=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rotary_dim=config.head_dim if rope is None else config.ropes.distinct[rope].dim,
        rope=rope,
        window=config.sliding_windows[layer],
        scale=config.attention_scale,
        softcap=config.attention_softcap,
        qk_norm=config.qk_norm,
        qk_norm_eps=0.0 if config.qk_norm is None else config.rms_norm_eps,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        is_fused=config.fused,
    )


def _dense(config: ModelConfig) -> DenseSpec:
    size, parts = config.intermediate_size, ("mlp.gate_proj", "mlp.up_proj")
    rows = (size, size)
    if config.fused:
        parts, rows = ("mlp.gate_up_proj",), (2 * size,)
    return DenseSpec(
        gate_up=Projection(
            parts=parts, rows=rows, width=config.hidden_size, has_bias=config.mlp_bias
        ),
        down=Projection(
            parts=("mlp.down_proj",),
            rows=(config.hidden_size,),
            width=size,
            has_bias=config.mlp_bias,
        ),
        activation=config.activation,
    )


def _architecture(fields: Fields) -> str:
    names = list(fields.texts("architectures"))
    if not names:
        raise invalid("architectures", fields.value("architectures"), "must name the model's class")
    for name in names:
        if name in FAMILIES:
            return name
    # A peer's text may hold any characters; those that cannot be shown are escaped.
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
        raise invalid("head_dim", head_dim, "must be even, since rotary embedding rotates pairs")
    return head_dim
