"""Layers that are a mixer or a feed-forward alone (Nemotron-H, https://arxiv.org/abs/2504.03624).

`layer_types` says what each layer is; before, `hybrid_override_pattern` did, with a letter for each.
"""

from collections.abc import Mapping

from potluck.model.common_fields import read_kinds
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_LAYERS

MIXTURE = "moe"
FEED_FORWARDS = ("mlp", MIXTURE)
_MIXERS = ("attention", "full_attention", "mamba", "linear_attention")
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": MIXTURE}


def with_layer_types(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """The fields with the kind of each layer, and the number of layers that follows from these."""
    if "layer_types" in fields or "hybrid_override_pattern" not in fields:
        kinds = list(fields.over(defaults).texts("layer_types"))
    else:
        pattern = fields.text("hybrid_override_pattern")
        if set(pattern) - set(_LETTERS):
            raise invalid(
                "hybrid_override_pattern", pattern, f"must be letters of {' '.join(_LETTERS)}"
            )
        kinds = [_LETTERS[letter] for letter in pattern]
    if not 1 <= len(kinds) <= MAX_LAYERS:
        raise invalid("layer_types", len(kinds), f"must have 1 to {MAX_LAYERS} entries")
    fields = fields.having({"layer_types": kinds, "num_hidden_layers": len(kinds)})
    read_kinds(fields, "layer_types", (*_MIXERS, *FEED_FORWARDS), len(kinds))
    return fields


def kinds_of_halves(fields: Fields) -> list[str]:
    """What each layer is."""
    return list(fields.texts("layer_types"))
