"""What each layer of a model is made of: one `LayerSpec`, which the engine and the planner read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from potluck.model.caches import CacheSizes, CacheSpec, FullCache, KeysAndValues, WindowCache
from potluck.model.families import Activation, ExpertFacts, Family, LayerNorms, QkNormKind
from potluck.model.fields import Fields, invalid
from potluck.model.limits import (
    MAX_EXPERT_MATRICES,
    MAX_EXPERTS,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_MULTIPLIER,
    MAX_POSITION,
)
from potluck.model.quantized import MatrixRole, Shape
from potluck.model.rope import listed_ropes
from potluck.model.routing import Routing

_EXPERT_MATRICES = 3  # of one expert: gate, up, down
_LEAST_IN_GROUP = 2  # a group of experts is as good as its best two together
_MAX_PATTERN = 64  # letters: EXAONE 4 has four


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix in the form used for computing: the rows of one or more matrices of the files.

    Names are those of the files, without the layer's prefix and without `.weight`.
    """

    parts: tuple[str, ...]
    rows: tuple[int, ...]  # of each part
    width: int
    has_bias: bool = False

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        """Names and shapes of what the files hold, each weight before its bias."""
        for part, rows in zip(self.parts, self.rows, strict=True):
            yield f"{part}.weight", (rows, self.width)
            if self.has_bias:
                yield f"{part}.bias", (rows,)

    def split(self) -> "list[Projection]":
        """Each part as a projection of its own."""
        pairs = zip(self.parts, self.rows, strict=True)
        return [replace(self, parts=(part,), rows=(rows,)) for part, rows in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention over the keys and values of all tokens so far, or of the last `window` ones."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # the first values of each head, which are rotated
    rope: int | None = None  # which of the model's distinct ropes rotates them; None: no rope
    window: int | None = None  # tokens that a query sees, itself among them; None: all
    scale: float  # of the products of queries and keys
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    qk_norm: QkNormKind | None = None
    qk_norm_eps: float = 0.0
    qkv_bias: bool = False
    output_bias: bool = False
    is_fused: bool = False  # files have queries, keys and values in one matrix

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv(self) -> Projection:
        parts, rows = ("q_proj", "k_proj", "v_proj"), (self.q_size, self.kv_size, self.kv_size)
        if self.is_fused:
            parts, rows = ("qkv_proj",), (sum(rows),)
        return Projection(
            parts=tuple(f"self_attn.{part}" for part in parts),
            rows=rows,
            width=self.hidden_size,
            has_bias=self.qkv_bias,
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=("self_attn.o_proj",),
            rows=(self.hidden_size,),
            width=self.q_size,
            has_bias=self.output_bias,
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.output

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer."""
        heads, size = self.kv_heads, self.head_dim
        row = KeysAndValues(heads=heads, size=size, number_bytes=sizes.number_bytes)
        if self.window is None:
            return FullCache(row=row)
        return WindowCache(row=row, window=self.window, chunk=sizes.chunk, slack=sizes.slack)

    @property
    def kind(self) -> "AttentionSpec":
        """This attention as far as its cost depends on it. Rope costs next to nothing."""
        return replace(self, rope=None, rotary_dim=0)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections: the weights of the norms of queries and of keys."""
        match self.qk_norm:
            case None:
                return {}
            case "head":
                sizes = (self.head_dim, self.head_dim)
            case "projection":
                sizes = (self.q_size, self.kv_size)
        names = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
        return {name: (size,) for name, size in zip(names, sizes, strict=True)}


Mixer = AttentionSpec
"""The part of a layer that mixes a token with those before it; a union, if there are more kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A gated MLP: down(activation(gate x) · (up x))."""

    gate_up: Projection  # all gates before all ups
    down: Projection
    activation: Activation

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.gate_up, self.down

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a layer, and how a router chooses a few of them for each token."""

    routing: Routing
    intermediate_size: int  # of one expert
    shared_size: int = 0  # of the expert that all tokens go through; 0: there is none
    facts: ExpertFacts

    @property
    def part(self) -> float:
        """Which part of the chosen experts' matrices a token goes through."""
        return self.routing.per_token / self.routing.count


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture of experts (MoE), each of which is a gated MLP."""

    hidden_size: int
    experts: Experts
    activation: Activation

    @property
    def router(self) -> Projection:
        """A row for each expert, then the one that weighs the shared expert."""
        facts, routing = self.experts.facts, self.experts.routing
        names, rows = [facts.router], [routing.count]
        if facts.shared_gate is not None:
            names, rows = [*names, facts.shared_gate], [*rows, 1]
        parts = tuple(f"{facts.block}.{name}" for name in names)
        return Projection(parts=parts, rows=tuple(rows), width=self.hidden_size)

    @property
    def choice_bias(self) -> str | None:
        """The name of the tensor that is added to the probabilities for choosing."""
        facts = self.experts.facts
        return None if facts.bias is None else f"{facts.block}.{facts.bias}"

    def expert(self, index: int) -> DenseSpec:
        return self._gated(f"experts.{index}", self.experts.intermediate_size)

    @property
    def shared(self) -> DenseSpec | None:
        """The expert that all tokens go through."""
        name, size = self.experts.facts.shared, self.experts.shared_size
        return None if name is None or size == 0 else self._gated(name, size)

    @property
    def projections(self) -> tuple[Projection, ...]:
        experts = [self.expert(index) for index in range(self.experts.routing.count)]
        experts += [] if self.shared is None else [self.shared]
        return self.router, *(one for expert in experts for one in expert.projections)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        bias = self.choice_bias
        return {} if bias is None else {bias: (self.experts.routing.count,)}

    def _gated(self, name: str, size: int) -> DenseSpec:
        facts, hidden = self.experts.facts, self.hidden_size
        prefix = f"{facts.block}.{name}."
        return DenseSpec(
            gate_up=Projection(
                parts=(prefix + facts.gate, prefix + facts.up), rows=(size, size), width=hidden
            ),
            down=Projection(parts=(prefix + facts.down,), rows=(hidden,), width=size),
            activation=self.activation,
        )


FeedForward = DenseSpec | MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """All that is known of a decoder layer before its weights are loaded.

    hidden += multiplier · after_mixer(mixer(before_mixer(hidden)))
    hidden += multiplier · after_mlp(feed_forward(before_mlp(hidden)))
    """

    hidden_size: int
    mixer: Mixer
    feed_forward: FeedForward
    norms: LayerNorms[str]  # where they stand, and what files call them
    norm_eps: float
    residual_multiplier: float = 1.0  # multiplies what mixer and feed-forward add to hidden states

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of the layer's tensors in files."""
        projections = (*self.mixer.projections, *self.feed_forward.projections)
        tensors: dict[str, Shape] = dict(
            tensor for projection in projections for tensor in projection.tensors()
        )
        tensors |= {f"{name}.weight": (self.hidden_size,) for name in self.norms.present}
        return tensors | self.mixer.small_tensors | self.feed_forward.small_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """The facts on which the cost of a layer depends. Layers of equal kinds cost the same."""

    spec: LayerSpec  # with the `kind` of its mixer
    finer: frozenset[MatrixRole] = frozenset()  # matrices that may be held in more bits than others

    @property
    def has_experts(self) -> bool:
        return isinstance(self.spec.feed_forward, MoeSpec)


def read_windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """For each layer how many tokens a query sees; None: all."""
    switch = family.window_switch
    off = switch is not None and not fields.flag(switch, False)
    # `"sliding_window": null` also means no window; only a missing field gets the default.
    if family.windows == "none" or off or "sliding_window" not in fields:
        return (None,) * layers
    window = fields.integer("sliding_window", 1, MAX_POSITION)
    if family.layer_types and "layer_types" in fields:
        has_window = _layer_types(fields, layers)
    else:
        has_window = _pattern(fields, family, layers)
    return tuple(window if has else None for has in has_window)


def _layer_types(fields: Fields, layers: int) -> list[bool]:
    kinds = _kinds(fields, "layer_types", ("full_attention", "sliding_attention"), layers)
    return [kind == "sliding_attention" for kind in kinds]


def _kinds(fields: Fields, name: str, known: Sequence[str], layers: int) -> list[str]:
    """The kind of each layer, as a list of them says it."""
    kinds = list(fields.texts(name))
    if len(kinds) != layers:
        raise invalid(name, len(kinds), f"must have one entry for each of {layers} layers")
    for kind in kinds:
        if kind not in known:
            raise invalid(name, kind, f"must be {' or '.join(known)}")
    return kinds


def _pattern(fields: Fields, family: Family, layers: int) -> list[bool]:
    match family.windows:
        case "none":
            return [False] * layers
        case "all":
            return [True] * layers
        case "last":
            first = fields.integer("max_window_layers", 0, MAX_LAYERS)
            return [layer >= first for layer in range(layers)]
        case "without rope":
            return [not rope for rope in listed_ropes(fields, layers)]
        case "pattern":
            return _repeated(fields, layers)


def _repeated(fields: Fields, layers: int) -> list[bool]:
    """Which layers have a window: all but each n-th, or those of letter `L` but the last layer."""
    name = "sliding_window_pattern"
    if not isinstance(fields.value(name), str):
        every = fields.integer(name, 1, MAX_LAYERS)
        return [bool((layer + 1) % every) for layer in range(layers)]
    letters = fields.text(name)
    if not 0 < len(letters) <= _MAX_PATTERN or set(letters) - set("LG"):
        raise invalid(name, letters, "must be a number, or a few letters L and G")
    local = [letters[layer % len(letters)] == "L" for layer in range(layers)]
    return [*local[:-1], False]


def read_experts(fields: Fields, family: Family) -> Experts | None:
    """The experts of the model's MoE layers; None: its family has none."""
    facts = family.experts
    if facts is None:
        return None
    size = fields.integer(facts.intermediate, 1, MAX_INTERMEDIATE)
    shared = 0
    if facts.shared_size is not None:
        shared = fields.integer(facts.shared_size, 0, MAX_INTERMEDIATE)
    elif facts.shared_count is not None:
        shared = size * fields.integer(facts.shared_count, 0, MAX_INTERMEDIATE // size, 0)
    return Experts(
        routing=_routing(fields, facts, has_shared=shared > 0),
        intermediate_size=size,
        shared_size=shared,
        facts=facts if shared else replace(facts, shared=None, shared_gate=None),
    )


def _routing(fields: Fields, facts: ExpertFacts, *, has_shared: bool) -> Routing:
    # Transformers 5 writes num_local_experts for what Qwen calls num_experts, and DeepSeek n_routed_experts.
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    count = fields.integer(next((n for n in names if n in fields), names[-1]), 1, MAX_EXPERTS)
    normalise, scale = facts.normalise, 1.0
    if facts.scale is not None:
        scale = fields.number(facts.scale, 0.0, MAX_MULTIPLIER)
    groups = fields.integer("n_group", 1, count) if facts.groups else 1
    if count % groups or (groups > 1 and count // groups < _LEAST_IN_GROUP):
        raise invalid("n_group", groups, f"must divide {count} experts into groups of two or more")
    chosen = fields.integer("topk_group", 1, groups) if facts.groups else 1
    return Routing(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 1, chosen * (count // groups)),
        normalise=fields.flag(normalise, False) if isinstance(normalise, str) else normalise,
        function=facts.function,
        has_bias=facts.bias is not None,
        groups=groups,
        groups_per_token=chosen,
        scale=scale,
        has_shared_gate=has_shared and facts.shared_gate is not None,
    )


def read_expert_layers(fields: Fields, experts: Experts | None, layers: int) -> tuple[bool, ...]:
    """For each layer whether it is a MoE; the others have one MLP."""
    if experts is None:
        return (False,) * layers
    found = _expert_layers(fields, experts, layers)
    # Each matrix takes memory for its name and shape: a small file must not cause gigabytes.
    most = MAX_EXPERT_MATRICES // (experts.routing.count * _EXPERT_MATRICES)
    if sum(found) > most:
        raise invalid(
            fields.path("num_hidden_layers"),
            layers,
            f"must leave at most {most} layers with experts, of which each has {experts.routing.count}",
        )
    return found


def _expert_layers(fields: Fields, experts: Experts, layers: int) -> tuple[bool, ...]:
    if experts.facts.layers == "all":
        return (True,) * layers
    if experts.facts.layers == "after dense":
        if "mlp_layer_types" in fields:
            kinds = _kinds(fields, "mlp_layer_types", ("dense", "sparse"), layers)
            return tuple(kind == "sparse" for kind in kinds)
        dense = fields.integer("first_k_dense_replace", 0, MAX_LAYERS)
        return tuple(layer >= dense for layer in range(layers))
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(fields.integers("mlp_only_layers", 0, MAX_LAYERS, MAX_LAYERS))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
