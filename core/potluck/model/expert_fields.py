"""Read from a config what its mixtures of experts are, how experts are chosen, and which layers have them."""

from dataclasses import replace

from potluck.model.common_fields import read_dense_layers, read_kinds, same_integer
from potluck.model.families.facts import ExpertFacts, Family
from potluck.model.fields import Fields, invalid
from potluck.model.halves import MIXTURE, kinds_of_halves
from potluck.model.layers import Experts, MoeSpec
from potluck.model.limits import (
    MAX_EXPERT_MATRICES,
    MAX_EXPERTS,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_MULTIPLIER,
)
from potluck.model.routing import Routing, ScoreFunction

_EXPERT_MATRICES = 3  # of one expert: gate, up, down


def read_experts(
    fields: Fields, family: Family, hidden: int, *, splits_gates: bool = False
) -> Experts | None:
    """The experts of the model's MoE layers; None: its family has none.

    `splits_gates`: the files have gates and ups in matrices of their own, also where the family has one.
    """
    facts = family.experts
    if facts is None or (facts.switch is not None and not fields.flag(facts.switch, False)):
        return None
    if facts.may_be_none and fields.value("num_local_experts") == 0:
        return None
    if facts.layers == "named" and MIXTURE not in kinds_of_halves(fields):
        return None
    if splits_gates:
        in_one = facts.shared_names is not None and len(facts.shared_names) == 2
        facts = replace(facts, fused=None, shared_names=None if in_one else facts.shared_names)
    size = fields.integer(facts.intermediate, 1, MAX_INTERMEDIATE)
    shared = 0
    if facts.shared_size is not None:
        shared = fields.integer(facts.shared_size, 0, MAX_INTERMEDIATE)
    elif facts.shared_count is not None:
        shared = size * fields.integer(facts.shared_count, 0, MAX_INTERMEDIATE // size, 0)
    narrow = 0
    if facts.narrow is not None and facts.narrow[0] in fields:
        narrow = fields.integer(facts.narrow[0], 1, hidden)
    return Experts(
        routing=_routing(fields, facts, has_shared=shared > 0),
        intermediate_size=size,
        shared_size=shared,
        narrow_size=narrow,
        facts=facts if shared else replace(facts, shared=None, shared_gate=None),
    )


def _routing(fields: Fields, facts: ExpertFacts, *, has_shared: bool) -> Routing:
    # Transformers 5 writes num_local_experts for what Qwen calls num_experts, and DeepSeek n_routed_experts.
    names = ("num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts")
    count = same_integer(fields, next((n for n in names if n in fields), names[-1]), 1, MAX_EXPERTS)
    normalise, scale = facts.normalise, 1.0
    if facts.scale is not None:
        scale = fields.number(facts.scale, 0.0, MAX_MULTIPLIER)
    shared_scale = 1.0
    if has_shared and facts.shared_average is not None:
        how = fields.text(facts.shared_average)
        if how not in ("average", "sum"):
            raise invalid(facts.shared_average, how, "must be average or sum")
        scale, shared_scale = (scale / 2, 0.5) if how == "average" else (scale, 1.0)
    function = facts.function
    if (name := facts.function_field) is not None:
        function = _function(name, fields.text(name))
        normalise = True if function == "softmax" else normalise
    jitter = 0.0
    if facts.jitter is not None:
        jitter = 2 * fields.number(facts.jitter, 0.0, MAX_MULTIPLIER)
    groups, chosen = _groups(fields, facts, count)
    return Routing(
        count=count,
        per_token=same_integer(fields, facts.chosen, 1, chosen * (count // groups)),
        normalise=fields.flag(normalise, False) if isinstance(normalise, str) else normalise,
        function=function,
        jitter=jitter,
        has_bias=facts.bias is not None,
        biases_products=facts.biases_products,
        groups=groups,
        groups_per_token=chosen,
        best_in_group=facts.best_in_group,
        scale=scale,
        shared_scale=shared_scale,
        scales_input=facts.scales_input,
        has_shared_gate=has_shared and facts.shared_gate is not None,
    )


def _function(field: str, name: str) -> ScoreFunction:
    match name:
        case "softmax" | "sigmoid":
            return name
        case other:
            raise invalid(field, other, "must be softmax or sigmoid")


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
        return tuple(not dense for dense in read_dense_layers(fields, layers))
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
    if experts.facts.layers == "named":
        return tuple(kind == MIXTURE for kind in kinds_of_halves(fields))
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
