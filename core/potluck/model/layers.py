"""What each layer of a model is made of: one `LayerSpec`, which the engine and the planner read."""

from dataclasses import dataclass, replace

from potluck.model.caches import CacheSizes, CacheSpec, RecurrentCache, State
from potluck.model.common_fields import read_kinds, same_integer
from potluck.model.families.facts import (
    Activation,
    ExpertFacts,
    Family,
    LayerNorms,
    NormKind,
    ParallelNorms,
)
from potluck.model.fields import Fields, invalid
from potluck.model.limits import (
    MAX_EXPERT_MATRICES,
    MAX_EXPERTS,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_MULTIPLIER,
)
from potluck.model.mixers import Mixer
from potluck.model.ngrams import NgramSpec
from potluck.model.projection import Projection
from potluck.model.quantized import MatrixRole, Shape
from potluck.model.routing import Routing
from potluck.model.streams import LayerStreams

_EXPERT_MATRICES = 3  # of one expert: gate, up, down


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A gated MLP: down(activation(gate x) · (up x))."""

    gate_up: Projection  # all gates before all ups, unless the activation has pairs
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
        parts = tuple(map(facts.name, names))
        return Projection(
            parts=parts, rows=tuple(rows), width=self.hidden_size, has_bias=facts.router_bias
        )

    @property
    def choice_bias(self) -> str | None:
        """The name of the tensor that is added to the probabilities for choosing."""
        facts, routing = self.experts.facts, self.experts.routing
        return facts.name(facts.bias) if facts.bias is not None and routing.has_bias else None

    @property
    def id_table(self) -> str | None:
        """The name of the table that says the experts of each token's id."""
        facts, vocabulary = self.experts.facts, self.experts.routing.vocabulary
        return None if vocabulary is None or facts.id_table is None else facts.name(facts.id_table)

    @property
    def router_norm(self) -> str | None:
        """The name of the weights of the norm before the router."""
        facts = self.experts.facts
        return None if facts.router_norm is None else facts.name(facts.router_norm)

    @property
    def expert_scales(self) -> str | None:
        """The name of what the factors of the chosen experts are multiplied by."""
        facts = self.experts.facts
        return None if facts.expert_scales is None else facts.name(facts.expert_scales)

    def expert(self, index: int) -> DenseSpec:
        fused = self.experts.facts.fused
        return self._gated(f"experts.{index}", self.experts.intermediate_size, fused)

    @property
    def shared(self) -> DenseSpec | None:
        """The expert that all tokens go through."""
        name, size = self.experts.facts.shared, self.experts.shared_size
        if name is None or size == 0:
            return None
        facts = self.experts.facts
        return self._gated(name, size, names=facts.shared_names, parts=facts.shared_parts)

    @property
    def projections(self) -> tuple[Projection, ...]:
        experts = [self.expert(index) for index in range(self.experts.routing.count)]
        experts += [] if self.shared is None else [self.shared]
        return self.router, *(one for expert in experts for one in expert.projections)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        routing, width = self.experts.routing, (self.hidden_size,)
        each, ids = (routing.count,), (routing.vocabulary or 0, routing.per_token)
        named: tuple[tuple[str | None, Shape], ...] = (
            (self.choice_bias, each),
            (self.expert_scales, each),
            (self.router_norm, width),
            (self.id_table, ids),
        )
        return {name: shape for name, shape in named if name is not None}

    def _gated(
        self,
        name: str,
        size: int,
        fused: str | None = None,
        names: tuple[str, str] | None = None,
        parts: tuple[str, str, str] | None = None,
    ) -> DenseSpec:
        facts, hidden = self.experts.facts, self.hidden_size
        prefix, has_bias = facts.name(f"{name}."), facts.expert_bias
        *firsts, last = parts or (facts.gate, facts.up, facts.down)
        inputs, rows = tuple(prefix + one for one in firsts), (size, size)
        if names is not None:
            fused, last = names
        if fused is not None:
            inputs, rows = (prefix + fused,), (2 * size,)
        down = Projection(parts=(prefix + last,), rows=(hidden,), width=size, has_bias=has_bias)
        return DenseSpec(
            gate_up=Projection(parts=inputs, rows=rows, width=hidden, has_bias=has_bias),
            down=down,
            activation=self.activation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """An MLP and a mixture of experts side by side, each between norms of its own (Gemma 4).

    after_dense(dense(before_dense(x))) + after_moe(moe(before_moe(x))), where the router reads x itself
    """

    dense: DenseSpec
    moe: MoeSpec
    norms: ParallelNorms[str]

    @property
    def activation(self) -> Activation:
        return self.dense.activation

    @property
    def projections(self) -> tuple[Projection, ...]:
        return *self.dense.projections, *self.moe.projections

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        norms = {f"{name}.weight": (self.moe.hidden_size,) for name in self.norms.present}
        return norms | self.moe.small_tensors


FeedForward = DenseSpec | MoeSpec | ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """All that is known of a decoder layer before its weights are loaded.

    hidden += multiplier · after_mixer(mixer(before_mixer(hidden)))
    hidden += multiplier · after_mlp(feed_forward(before_mlp(hidden)))
    hidden *= scale

    Side by side, the feed-forward reads before_mixer(hidden), as the mixer does, before either is added.
    With several residual streams, `streams` stands in place of what is added, and unless they are balanced of norms. Of a rank's part of a layer, what mixer or
    feed-forward give is summed over the ranks before anything else is done with it.
    """

    hidden_size: int
    mixer: Mixer
    feed_forward: FeedForward
    norms: LayerNorms[str]  # where they stand, and what files call them
    norm_eps: float
    norm_kind: NormKind = "root mean square"
    is_side_by_side: bool = False
    residual_multiplier: float = 1.0  # multiplies what mixer and feed-forward add to hidden states
    scale: str | None = None  # what files call the number that is multiplied with at last
    streams: LayerStreams | None = None  # None: there is one residual stream
    ngrams: NgramSpec | None = None  # what is added to the streams before the mixer
    # A rank of a group holds a part of it: what it gives is summed over all ranks (`shares.py`).
    sums_mixer: bool = False
    sums_feed_forward: bool = False

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of the layer's tensors in files."""
        projections = (*self.mixer.projections, *self.feed_forward.projections)
        tensors: dict[str, Shape] = dict(
            tensor for projection in projections for tensor in projection.tensors()
        )
        tensors |= {f"{name}.weight": (self.hidden_size,) for name in self.norms.present}
        tensors |= {} if self.scale is None else {self.scale: (1,)}
        for block in () if self.streams is None else self.streams.blocks:
            tensors |= block.tensors()
        tensors |= {} if self.ngrams is None else self.ngrams.tensors()
        return tensors | self.mixer.small_tensors | self.feed_forward.small_tensors

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer."""
        cache = self.mixer.cache(sizes)
        if self.ngrams is None:
            return cache
        assert isinstance(cache, RecurrentCache)
        return replace(cache, row=State(shapes=(*cache.row.shapes, *self.ngrams.state)))

    @property
    def kind(self) -> "LayerSpec":
        """This layer as far as its cost depends on it."""
        ngrams = None if self.ngrams is None else self.ngrams.kind
        return replace(self, mixer=self.mixer.kind, ngrams=ngrams)

    @property
    def needs_ids(self) -> bool:
        """Whether it looks at the tokens' ids."""
        feed_forward = self.feed_forward
        by_ids = isinstance(feed_forward, MoeSpec) and feed_forward.id_table is not None
        return by_ids or self.ngrams is not None

    @property
    def width(self) -> int:
        """Numbers of a token that come in, and that go out."""
        return self.hidden_size if self.streams is None else self.streams.width


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """The facts on which the cost of a layer depends. Layers of equal kinds cost the same."""

    spec: LayerSpec  # with the `kind` of its mixer
    finer: frozenset[MatrixRole] = frozenset()  # matrices that may be held in more bits than others

    @property
    def has_experts(self) -> bool:
        return not isinstance(self.spec.feed_forward, DenseSpec)


def read_experts(fields: Fields, family: Family, *, splits_gates: bool = False) -> Experts | None:
    """The experts of the model's MoE layers; None: its family has none.

    `splits_gates`: the files have gates and ups in matrices of their own, also where the family has one.
    """
    facts = family.experts
    if facts is None or (facts.switch is not None and not fields.flag(facts.switch, False)):
        return None
    if fields.value("num_local_experts") == 0:
        return None
    if splits_gates:
        facts = replace(facts, fused=None)
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
    names = ("num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts")
    count = same_integer(fields, next((n for n in names if n in fields), names[-1]), 1, MAX_EXPERTS)
    normalise, scale = facts.normalise, 1.0
    if facts.scale is not None:
        scale = fields.number(facts.scale, 0.0, MAX_MULTIPLIER)
    groups, chosen = _groups(fields, facts, count)
    return Routing(
        count=count,
        per_token=same_integer(fields, facts.chosen, 1, chosen * (count // groups)),
        normalise=fields.flag(normalise, False) if isinstance(normalise, str) else normalise,
        function=facts.function,
        has_bias=facts.bias is not None,
        groups=groups,
        groups_per_token=chosen,
        best_in_group=facts.best_in_group,
        scale=scale,
        scales_input=facts.scales_input,
        has_shared_gate=has_shared and facts.shared_gate is not None,
    )


def _groups(fields: Fields, facts: ExpertFacts, count: int) -> tuple[int, int]:
    """How many groups the experts form, and how many of these are chosen."""
    if not facts.groups:
        return 1, 1
    if (name := facts.group_method) is not None:
        method = fields.text(name, "greedy")
        if method == "greedy":
            return 1, 1
        if method != "group_limited_greedy":
            raise invalid(name, method, "must be greedy or group_limited_greedy")
    groups = fields.integer("n_group", 1, count)
    if count % groups or (groups > 1 and count // groups < facts.best_in_group):
        least = facts.best_in_group
        raise invalid(
            "n_group", groups, f"must divide {count} experts into groups of {least} or more"
        )
    return groups, fields.integer("topk_group", 1, groups)


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
            kinds = read_kinds(fields, "mlp_layer_types", ("dense", "sparse"), layers)
            return tuple(kind == "sparse" for kind in kinds)
        dense = fields.integer("first_k_dense_replace", 0, MAX_LAYERS)
        return tuple(layer >= dense for layer in range(layers))
    if experts.facts.layers == "between":
        first = fields.integer("moe_layer_start_index", 0, MAX_LAYERS)
        last = fields.integer("moe_layer_end_index", -1, MAX_LAYERS) % layers
        every = fields.integer("moe_layer_interval", 1, MAX_LAYERS)
        return tuple(first <= layer <= last and (layer + 1) % every == 0 for layer in range(layers))
    if experts.facts.layers == "listed":
        if "moe_layers" in fields:
            listed = set(fields.integers("moe_layers", 0, MAX_LAYERS, MAX_LAYERS))
            return tuple(layer in listed for layer in range(layers))
        every = fields.integer("interleave_moe_layer_step", 1, MAX_LAYERS)
        return tuple((layer + 1) % every == 0 for layer in range(layers))
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(fields.integers("mlp_only_layers", 0, MAX_LAYERS, MAX_LAYERS))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def read_id_layers(fields: Fields, experts: Experts, layers: int) -> tuple[bool, ...]:
    """For each layer whether its experts are chosen by a token's id."""
    if experts.facts.id_table is None:
        return (False,) * layers
    if "mlp_layer_types" in fields:
        kinds = read_kinds(fields, "mlp_layer_types", ("hash_moe", "moe"), layers)
        return tuple(kind == "hash_moe" for kind in kinds)
    first = fields.integer("num_hash_layers", 0, MAX_LAYERS)
    return tuple(layer < first for layer in range(layers))


def chosen_by_id(moe: MoeSpec, vocabulary: int) -> MoeSpec:
    """The same mixture with experts that are chosen by a token's id."""
    routing = replace(moe.experts.routing, vocabulary=vocabulary, has_bias=False)
    return replace(moe, experts=replace(moe.experts, routing=routing))
