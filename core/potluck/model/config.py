"""What a decoder is made of, read from its `config.json`.

`ModelConfig.from_dict` takes the dictionary as it is in the file. It may come from a peer: whatever
it contains, the result is a consistent config, or a `ModelError` that names the field. Sizes are
bounded here, so that nobody multiplies two unchecked numbers later. Names of tensors are those of
Hugging Face. `families/` says what differs between families, the readers beside this file and in `mixing/` what
differs between layers. `ModelConfig.layers` has what each layer is made of.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from potluck.model.common_fields import (
    read_fact,
    read_multiplier,
    read_norm_eps,
    read_softcap,
)
from potluck.model.expert_fields import (
    read_experts,
)
from potluck.model.families.facts import Family, NormKind
from potluck.model.families.table import FAMILIES, WITH_TEXT
from potluck.model.fields import Fields, invalid, missing_block, with_names
from potluck.model.halves import with_layer_types
from potluck.model.layer_fields import read_layers, read_norm_kind
from potluck.model.layers import (
    Experts,
    LayerKind,
    LayerSpec,
    norm_tensors,
)
from potluck.model.limits import (
    MAX_EOS,
    MAX_HIDDEN,
    MAX_POSITION,
    MAX_VOCAB,
)
from potluck.model.mixing.carried import Carried, read_carried
from potluck.model.mixing.indexer import weighs_heads
from potluck.model.mixing.latent import EXPANSION, KEY_UP, VALUE_UP, LatentSpec
from potluck.model.mixing.mixer_fields import read_mixers
from potluck.model.mixing.ngrams import OWN_END
from potluck.model.mixing.rope import Rope, Stretches
from potluck.model.mixing.streams import (
    BalancedMixSpec,
    StreamMixSpec,
    Streams,
    final_balanced_mix,
    read_streams,
)
from potluck.model.names import BASE, bias_name
from potluck.model.naming import EMBEDDING, FINAL_MIX, FINAL_NORM, HEAD_BIAS, LM_HEAD
from potluck.model.quantization_config import FIELDS, read_quantization
from potluck.model.quantized import Quantization, Shape
from potluck.model.row_order import PairedRows
from potluck.model.unsupported import unknown_architecture
from potluck.model.vision.families import read_tower
from potluck.model.vision.spec import TowerSpec

_ABOVE = ("eos_token_id", "tie_word_embeddings")  # fields of a larger model that count for its text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The config of a model. Every value is checked, and the values agree with each other."""

    architecture: str
    vocab_size: int
    hidden_size: int
    head_dim: int
    max_position: int
    rms_norm_eps: float  # of the final norm
    norm_kind: NormKind  # likewise
    layers: tuple[LayerSpec, ...]
    ropes: tuple[Rope, ...]  # the distinct ones: layers have the index of theirs
    paired_rope: bool  # files have the values that rope turns together side by side
    experts: Experts | None  # of the layers that are a MoE
    tie_word_embeddings: bool
    has_head_bias: bool = False
    unit_offset: bool  # norms multiply by 1 + weight
    final_norm_is_whole: bool = False  # the final one does not
    embedding_norm_eps: float | None = (
        None  # of a norm of embeddings without weights; None: there is none
    )
    logits_softcap: float | None
    embedding_multiplier: float
    logits_divisor: float
    exceeds_f16: bool  # hidden states may exceed f16, though not bf16
    streams: Streams | None = None  # the residual streams; None: there is one
    carried: Carried | None = None  # what goes along behind hidden states; None: nothing
    eos_token_ids: tuple[int, ...]
    quantization: Quantization | None  # how files hold the matrices; None: plain numbers
    tower: TowerSpec | None = None  # that reads pictures, beside the embedding

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> "ModelConfig":
        """Read `config.json`.

        Raises:
            UnknownArchitectureError: the family is not one of `FAMILIES`.
            InvalidConfigError: a field is missing, of the wrong kind, or contradicts another.
        """
        fields = Fields(config)
        architecture = _architecture(fields)
        return _read(fields, architecture)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def width(self) -> int:
        """Numbers of a token between layers, and between stages: those of all residual streams, or what goes along too."""
        if self.carried is not None:
            return self.carried.width
        return self.hidden_size if self.streams is None else self.streams.width

    @property
    def picture_id(self) -> int | None:
        """Whose embeddings of layers rows of pictures have; None: layers have none."""
        inputs = self.layers[0].inputs
        return None if inputs is None else inputs.picture_id

    def needs_ids(self, layers: Iterable[int]) -> bool:
        """Whether one of these layers looks at the tokens' ids."""
        return any(self.layers[layer].needs_ids for layer in layers)

    @property
    def final_mix(self) -> StreamMixSpec | None:
        """What makes the head's input of several streams, in place of the final norm."""
        if self.streams is None or self.streams.balance is not None:
            return None
        return StreamMixSpec(streams=self.streams, name=FINAL_MIX, injects=False)

    @property
    def final_balanced_mix(self) -> BalancedMixSpec | None:
        """What makes the input of the final norm of balanced streams; None: they are averaged, or there are none."""
        if self.streams is None or self.streams.balance is None:
            return None
        return final_balanced_mix(self.streams, BASE)

    @property
    def stretches(self) -> Stretches:
        """Which rotary frequencies a session of some length has."""
        return Stretches.of(self.ropes)

    @property
    def head_name(self) -> str:
        """The name of the head's matrix; with tied embeddings it is the embedding's."""
        return EMBEDDING if self.tie_word_embeddings else LM_HEAD

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """For each layer its kind: layers of equal kinds cost the same."""
        stored = self.quantization
        return tuple(
            LayerKind(
                spec=spec.kind,
                finer=frozenset() if stored is None else stored.higher_precision_roles(layer),
            )
            for layer, spec in enumerate(self.layers)
        )

    def follows(self, layer: int) -> int | None:
        """How many tokens a layer sees that an earlier one has chosen; None: it asks no earlier one."""
        mixer = self.layers[layer].mixer if layer < self.num_layers else None
        return mixer.follows if isinstance(mixer, LatentSpec) else None

    def layer_prefix(self, layer: int) -> str:
        return f"{BASE}layers.{layer}."

    def layer_tensors(self, layer: int) -> dict[str, Shape]:
        """Names and shapes of all tensors of one layer."""
        prefix = self.layer_prefix(layer)
        spec = self.layers[layer]
        own = {prefix + name: shape for name, shape in spec.tensors().items()}
        return own | spec.shared_tensors

    def paired_rows(self, name: str) -> PairedRows | None:
        """In which order files have the rows of this tensor; None: in that of computing."""
        stored = self.quantization
        layer, _, rest = name.removeprefix(f"{BASE}layers.").partition(".")
        if not (self.paired_rope or (stored is not None and stored.interleaved_heads)):
            return None
        mixer = self.layers[int(layer)].mixer if layer.isdecimal() else None
        return None if mixer is None else mixer.rope_rows.get(rest)

    def row_scales(self, name: str) -> tuple[tuple[int, float], ...]:
        """What the rows of this matrix are multiplied by when it is loaded, as runs of rows; empty: by nothing."""
        layer, _, rest = name.removeprefix(f"{BASE}layers.").partition(".")
        return dict(self.layers[int(layer)].row_scales).get(rest, ()) if layer.isdecimal() else ()

    def is_router(self, name: str) -> bool:
        """Whether a tensor is the router of a MoE, weighs its shared expert, or an indexer's heads; or its table of ids."""
        if weighs_heads(name):
            return True
        if self.experts is None:
            return False
        facts = self.experts.facts
        parts = (facts.router, facts.shared_gate)
        ends = tuple(f".{facts.name(part)}.weight" for part in parts if part)
        return name.endswith(ends) or self.is_id_table(name)

    def is_id_table(self, name: str) -> bool:
        """Whether a tensor says the experts of each token's id, in integers."""
        table = None if self.experts is None else self.experts.facts.id_table
        return table is not None and name.endswith(f".{table}")

    def is_choice_bias(self, name: str) -> bool:
        """Whether a tensor is added to a router's probabilities for choosing."""
        bias = None if self.experts is None else self.experts.facts.bias
        return bias is not None and name.endswith(f".{bias}")

    def is_norm_bias(self, name: str) -> bool:
        """Whether a tensor is the bias of a norm of hidden states."""
        if self.norm_kind != "biased layer":
            return False
        norms = {norm for layer in self.layers[:1] for norm in layer.norms.present}
        return name == bias_name(FINAL_NORM) or name.endswith(tuple(f".{n}.bias" for n in norms))

    def is_expansion(self, name: str) -> bool:
        """Whether a tensor expands latents, or is a part of the one that does."""
        return name.endswith((f".{EXPANSION}.weight", f".{KEY_UP}.weight", f".{VALUE_UP}.weight"))

    def is_of_expert(self, name: str) -> bool:
        """Whether a tensor belongs to one expert of a MoE."""
        return self.experts is not None and f".{self.experts.facts.name('experts')}." in name

    def embedding_tensors(self) -> dict[str, Shape]:
        """Names and shapes of what makes hidden states of tokens, and of pictures."""
        return {EMBEDDING: (self.vocab_size, self.hidden_size)} | self.tower_tensors()

    @property
    def deep_layers(self) -> int:
        """To how many of the first layers' outputs rows of pictures are added."""
        return 0 if self.tower is None else min(len(self.tower.deep_layers), self.num_layers)

    def deep_numbers(self, first_layer: int) -> int:
        """Numbers behind the hidden states of a step with pictures, before a stage that begins with this layer."""
        return max(0, self.deep_layers - first_layer) * self.width

    def tower_tensors(self) -> dict[str, Shape]:
        """Names and shapes of the vision tower's tensors."""
        return {} if self.tower is None else self.tower.tensors()

    def head_tensors(self) -> dict[str, Shape]:
        """Names and shapes of final norm and head."""
        mix = self.final_mix
        norm: dict[str, Shape] = (
            norm_tensors(FINAL_NORM, self.hidden_size, self.norm_kind)
            if mix is None
            else mix.tensors()
        )
        if (balanced := self.final_balanced_mix) is not None:
            norm |= balanced.tensors()
        if self.has_head_bias:
            norm[HEAD_BIAS] = (self.vocab_size,)
        return norm | {self.head_name: (self.vocab_size, self.hidden_size)}

    def stage_tensors(
        self, layers: Iterable[int], *, embedding: bool, head: bool, tower: bool = False
    ) -> dict[str, Shape]:
        """Names and shapes of all that a stage needs, each tensor once.

        The vision tower is beside the embedding, or without it where only pictures are read (`tower`).
        """
        tensors = self.embedding_tensors() if embedding else {}
        if tower:
            tensors |= self.tower_tensors()
        for layer in layers:
            tensors |= self.layer_tensors(layer)
        return tensors | self.head_tensors() if head else tensors


def _architecture(fields: Fields) -> str:
    names = list(fields.texts("architectures"))
    if not names:
        raise invalid("architectures", fields.value("architectures"), "must name the model's class")
    for name in names:
        if name in FAMILIES or name in WITH_TEXT:
            return name
    text = fields.fields("text_config").names if "text_config" in fields else ()
    known = (*FAMILIES, *WITH_TEXT)
    raise unknown_architecture("The model", names[0], known, fields=(*fields.names, *text))


def _text_of(whole: Fields, texts: Mapping[str, str]) -> tuple[Fields, Family]:
    """The fields of the decoder in a larger model, and its family."""
    fields = whole.fields("text_config") if "text_config" in whole else whole
    name = next(iter(texts))
    if fields is not whole:
        name = fields.text("model_type", name)
        above = {name: whole.value(name) for name in _ABOVE if name in whole}
        above[OWN_END] = fields.value("eos_token_id")
        fields = fields.having(above)
    if name not in texts:
        what = "The text part of the model"
        raise unknown_architecture(what, name, texts, fields=fields.names, families=FAMILIES)
    return fields, FAMILIES[texts[name]]


def _check_blocks(fields: Fields, family: Family, architecture: str) -> None:
    """Refuse a model of a known family that has a block which others of the family do not have."""
    for name, block in family.lacks.items():
        if fields.value(name):
            raise missing_block(architecture, block, f"{name} in its config.json")


def _read(whole: Fields, architecture: str) -> ModelConfig:
    texts = WITH_TEXT.get(architecture)
    fields, family = (whole, FAMILIES[architecture]) if texts is None else _text_of(whole, texts)
    name = "use_bidirectional_attention"
    value = whole.value(name) or fields.value(name)
    if value and value != "vision":  # which pictures alone have
        raise invalid(name, value, "must be absent: a model that looks ahead cannot write text")
    quantization = read_quantization(whole if any(f in whole for f in FIELDS) else fields)
    norms_are_whole = quantization is not None and quantization.norms_are_whole
    names = family.field_names
    fields, defaults = fields.renamed(names), with_names(family.defaults, names)
    if family.halves:
        fields = with_layer_types(fields, defaults)
    fields = fields.over(defaults)
    if family.words is not None:
        fields = fields.having(family.words(fields))
    _check_blocks(fields, family, architecture)
    hidden = fields.integer("hidden_size", 1, MAX_HIDDEN)
    max_position = fields.integer("max_position_embeddings", 1, MAX_POSITION, 32768)
    mixers = read_mixers(fields, family, hidden, max_position, quantization)
    splits_gates = quantization is not None and quantization.method == "gguf"
    experts = read_experts(fields, family, hidden, splits_gates=splits_gates)
    streams = None if family.streams is None else read_streams(fields, family.streams, hidden)
    carried = read_carried(fields, family, hidden, mixers.layers)
    pairs = mixers.ropes[0].dim // 2 if mixers.ropes else 0
    tower = read_tower(whole, fields, architecture, out=hidden, pairs=pairs)
    ropes = mixers.ropes
    if tower is not None:
        ropes = tuple(replace(rope, axes=tower.axes) for rope in ropes)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden,
        head_dim=mixers.head_dim,
        max_position=max_position,
        rms_norm_eps=read_norm_eps(fields),
        norm_kind=read_norm_kind(fields, family),
        layers=read_layers(
            fields,
            family,
            hidden,
            mixers.layers,
            experts,
            streams,
            carried,
            splits_gates=splits_gates,
        ),
        ropes=ropes,
        paired_rope=read_fact(fields, family.paired_rope),
        experts=experts,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        has_head_bias=read_fact(fields, family.head_bias),
        unit_offset=family.unit_offset and not norms_are_whole,
        final_norm_is_whole=family.final_norm_is_whole and not norms_are_whole,
        embedding_norm_eps=read_norm_eps(fields) if family.embedding_norm else None,
        logits_softcap=read_softcap(fields, family.logits_softcap),
        embedding_multiplier=math.sqrt(hidden)
        if read_fact(fields, family.root_embedding)
        else read_multiplier(fields, family.embedding_multiplier),
        logits_divisor=read_multiplier(fields, family.logits_divisor)
        / read_multiplier(fields, family.logits_multiplier),
        exceeds_f16=family.exceeds_f16,
        streams=streams,
        carried=carried,
        eos_token_ids=fields.integers("eos_token_id", 0, MAX_VOCAB, MAX_EOS),
        quantization=quantization,
        tower=tower,
    )
