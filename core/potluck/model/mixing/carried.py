"""Numbers of a token that go along behind its hidden states, from layer to layer and from stage to stage (Gemma 4 E2B, E4B).

The first layers of such a model have keys and values of their own. The last ones take those of the last layer before them
that sees as many tokens. A stage caches them once: where it has that layer, in its cache, and else in that of the first
one that takes them. They go along, so that a model may be cut anywhere. And each layer adds an embedding of the token that is its own. With D hidden states h, the token's first embedding e, and a table T of n numbers for
each layer l and token,

    p = (norm(P_l e / √D) + √n T_l) / √2
    h += norm(B (activation(A h) · p))

The table is most of the model, and a token needs a row of it: it stays on the disk, as n-grams' do (`ngrams.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.model.families.facts import Activation, Family
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB
from potluck.model.mixing.mixers import AttentionSpec, Mixer
from potluck.model.names import BASE
from potluck.model.projection import Projection
from potluck.model.quantized import Shape

_TABLE = f"{BASE}embed_tokens_per_layer.weight"
_NORM = f"{BASE}per_layer_projection_norm.weight"
OF_ALL_LAYERS = f"{BASE}per_layer_model_projection."
"""What the names of the tensors begin with whose rows are those of all layers, one after the other."""
_CONTEXT, _GATE, _OUTPUT = (
    "per_layer_model_projection",
    "per_layer_input_gate",
    "per_layer_projection",
)
_MATRICES = tuple(f".{name}.weight" for name in (_CONTEXT, _GATE, _OUTPUT))
_MOST_TABLE = 1 << 36  # numbers; Gemma 4 E2B has 2.3 billion


def is_input_table(name: str) -> bool:
    """Whether a tensor is the table of all layers, which stays on the disk."""
    return name == _TABLE


def is_of_inputs(name: str) -> bool:
    """Whether a tensor is one of the matrices around a layer's embeddings."""
    return name.endswith(_MATRICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What goes along behind the hidden states of a token: its first embedding, then keys and values of each kind."""

    hidden_size: int
    embedding_size: int  # 0: no layer has inputs
    kinds: tuple[int, ...]  # numbers of the keys, and as many of the values, that later layers take

    @property
    def width(self) -> int:
        """Numbers of a token: its hidden states, and these."""
        return self.hidden_size + self.embedding_size + 2 * sum(self.kinds)

    def place(self, kind: int) -> slice:
        """Where keys and values of a kind are."""
        first = self.hidden_size + self.embedding_size + 2 * sum(self.kinds[:kind])
        return slice(first, first + 2 * self.kinds[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputSpec:
    """The embeddings of one layer."""

    hidden_size: int
    size: int  # n
    layers: int  # of the model
    layer: int
    rows: int  # of the table
    picture_id: int = 0  # whose row tokens have that stand for a row of a picture
    activation: Activation

    @property
    def head_size(self) -> int:
        """Numbers of a row of the table, which are those of all layers."""
        return self.size * self.layers

    @property
    def shard_rows(self) -> int:
        return self.rows

    @property
    def table(self) -> tuple[str, Shape]:
        """The full name and the shape of the table."""
        return _TABLE, (self.rows, self.head_size)

    @property
    def norm(self) -> tuple[str, Shape]:
        """The full name and the shape of the weights of the norm of P_l e, which all layers have in common."""
        return _NORM, (self.size,)

    @property
    def norm_after(self) -> str:
        """The name of the weights of the last norm."""
        return "post_per_layer_input_norm.weight"

    @property
    def context(self) -> Projection:
        """P_l."""
        return Projection(parts=(_CONTEXT,), rows=(self.size,), width=self.hidden_size)

    @property
    def gate(self) -> Projection:
        """A."""
        return Projection(parts=(_GATE,), rows=(self.size,), width=self.hidden_size)

    @property
    def output(self) -> Projection:
        """B."""
        return Projection(parts=(_OUTPUT,), rows=(self.hidden_size,), width=self.size)

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of its own tensors."""
        matrices = (self.context, self.gate, self.output)
        found = dict(tensor for one in matrices for tensor in one.tensors())
        return found | {self.norm_after: (self.hidden_size,)}

    @property
    def kind(self) -> "LayerInputSpec":
        """This one as far as its cost depends on it."""
        return replace(self, layer=0)


def read_layer_inputs(
    fields: Fields, family: Family, hidden: int, activation: Activation, layers: int
) -> list[LayerInputSpec | None]:
    """The embeddings of each layer."""
    size = _input_size(fields, family)
    if size == 0:
        return [None] * layers
    rows = fields.integer("vocab_size_per_layer_input", 1, MAX_VOCAB)
    vocabulary = fields.integer("vocab_size", 1, MAX_VOCAB)
    if rows < vocabulary:
        what = f"must be at least vocab_size = {vocabulary}"
        raise invalid("vocab_size_per_layer_input", rows, what)
    if rows * size * layers > _MOST_TABLE:
        what = f"must leave a table of at most {_MOST_TABLE} numbers"
        raise invalid(family.layer_inputs or "", size, what)
    whole = LayerInputSpec(
        hidden_size=hidden,
        size=size,
        layers=layers,
        layer=0,
        rows=rows,
        picture_id=fields.integer("pad_token_id", 0, rows - 1, 0),
        activation=activation,
    )
    return [replace(whole, layer=layer) for layer in range(layers)]


def share_keys(
    fields: Fields, family: Family, attentions: Sequence[AttentionSpec]
) -> list[AttentionSpec]:
    """The attention of all layers, of which the last ones take keys and values of earlier ones."""
    layers, name = len(attentions), family.shared_keys
    count = 0 if name is None else fields.integer(name, 0, min(layers - 1, MAX_LAYERS), 0)
    if name is None or count == 0:
        return list(attentions)
    first = layers - count
    found = list(attentions)
    kinds = sorted({one.window is None for one in attentions[first:]})
    for kind, sees_all in enumerate(kinds):
        giving = [layer for layer in range(first) if (found[layer].window is None) == sees_all]
        if not giving:
            what = "must leave a layer of each kind that has keys of its own"
            raise invalid(name, count, what)
        found[giving[-1]] = replace(found[giving[-1]], gives=kind)
        for layer in range(first, layers):
            if (found[layer].window is None) == sees_all:
                # Keys and values come with their norms.
                own = replace(found[layer], takes=kind, value_norm=False, keys_are_values=False)
                found[layer] = own
    return found


def cache_owners(mixers: Sequence[Mixer | None], number_bytes: int) -> tuple[int, ...]:
    """Which layer of a stage has the cache of each: itself, or an earlier one with the same keys and values.

    Integers are not quantised again as they were: what goes along may differ from what is cached by a last bit. So only those
    that take such keys and values share a cache, wherever the model is cut.

    Args:
        mixers: of the stage's layers.
        number_bytes: of a cached number; 1: integers with scales.
    """
    owners, known = list[int](), dict[int, int]()
    for layer, mixer in enumerate(mixers):
        kind = None
        if isinstance(mixer, AttentionSpec):
            kind = mixer.gives if mixer.takes is None and number_bytes > 1 else mixer.takes
        owners.append(layer if kind is None else known.setdefault(kind, layer))
    return tuple(owners)


def read_carried(
    fields: Fields, family: Family, hidden: int, mixers: Sequence[Mixer | None]
) -> Carried | None:
    """What goes along in a model with these mixers; None: nothing does."""
    given: dict[int, int] = {
        one.gives: one.kv_size
        for one in mixers
        if isinstance(one, AttentionSpec) and one.gives is not None
    }
    has_inputs = _input_size(fields, family) > 0
    if not (given or has_inputs):
        return None
    sizes = tuple(size for _, size in sorted(given.items()))
    return Carried(hidden_size=hidden, embedding_size=hidden * has_inputs, kinds=sizes)


def _input_size(fields: Fields, family: Family) -> int:
    name = family.layer_inputs
    return 0 if name is None else fields.integer(name, 0, MAX_HIDDEN, 0)
