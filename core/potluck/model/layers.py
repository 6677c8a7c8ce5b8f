"""How the layers of one model differ: which have a sliding window, which have experts."""

from dataclasses import dataclass

from potluck.model.families import ExpertFacts, Family
from potluck.model.fields import Fields, invalid
from potluck.model.limits import (
    MAX_EXPERT_MATRICES,
    MAX_EXPERTS,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITION,
)
from potluck.model.quantized import Role
from potluck.model.rope import listed_ropes

_EXPERT_MATRICES = 3  # of one expert: gate, up, down
_MAX_PATTERN = 64  # letters: EXAONE 4 has four


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What makes a layer cost more or less than another of its model. Equal kinds cost the same."""

    window: int | None  # tokens that it looks back on; None: all
    experts: bool  # a mixture of them in place of one MLP
    finer: frozenset[Role] = frozenset()  # matrices that may be held in more bits than others


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: each token goes through the few that a router chooses for it."""

    count: int
    per_token: int
    intermediate_size: int  # of one expert
    normalise: bool  # whether the weights of the chosen ones are made to add up to one
    facts: ExpertFacts


def read_windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """For each layer how many tokens it sees; None: all."""
    switch = family.window_switch
    off = switch is not None and not fields.flag(switch, False)
    # `"sliding_window": null` switches it off too; only a missing field takes the default.
    if family.windows == "none" or off or "sliding_window" not in fields:
        return (None,) * layers
    window = fields.integer("sliding_window", 1, MAX_POSITION)
    if family.layer_types and "layer_types" in fields:
        has_window = _layer_types(fields, layers)
    else:
        has_window = _pattern(fields, family, layers)
    return tuple(window if has else None for has in has_window)


def _layer_types(fields: Fields, layers: int) -> list[bool]:
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != layers:
        raise invalid("layer_types", len(kinds), f"must have one entry for each of {layers} layers")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise invalid("layer_types", kind, "must be full_attention or sliding_attention")
    return [kind == "sliding_attention" for kind in kinds]


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
    """Every n-th layer sees all; or, as letters, `L` a window and `G` all, and the last layer all."""
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
    """The model's mixture of experts, where its family has one."""
    facts = family.experts
    if facts is None:
        return None
    # What Qwen calls num_experts is written as num_local_experts by transformers 5.
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    count = fields.integer(name, 1, MAX_EXPERTS)
    normalise = facts.normalise
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 1, count),
        intermediate_size=fields.integer(facts.intermediate, 1, MAX_INTERMEDIATE),
        normalise=fields.flag(normalise, False) if isinstance(normalise, str) else normalise,
        facts=facts,
    )


def read_expert_layers(fields: Fields, experts: Experts | None, layers: int) -> tuple[bool, ...]:
    """Which layers have experts; the others have an ordinary MLP."""
    if experts is None:
        return (False,) * layers
    found = _expert_layers(fields, experts, layers)
    # Every matrix becomes a name and a shape, more than once: a small file must not ask for a gigabyte.
    most = MAX_EXPERT_MATRICES // (experts.count * _EXPERT_MATRICES)
    if sum(found) > most:
        raise invalid(
            fields.path("num_hidden_layers"),
            layers,
            f"must leave at most {most} layers with experts, of which each has {experts.count}",
        )
    return found


def _expert_layers(fields: Fields, experts: Experts, layers: int) -> tuple[bool, ...]:
    if not experts.facts.some_layers:
        return (True,) * layers
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(fields.integers("mlp_only_layers", 0, MAX_LAYERS, MAX_LAYERS))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
