"""The recommended models: what is said of them must follow from their configs."""

from math import prod

import pytest

from potluck.hub.catalogue import RECOMMENDED, Recommended
from potluck.hub.variants import quantised_config
from potluck.model.config import ModelConfig
from potluck.model.tensor_formats import weight_bytes

every_model = pytest.mark.parametrize("entry", RECOMMENDED, ids=lambda entry: entry.model.name)


@every_model
def test_config_is_of_a_family_that_runs_and_has_the_published_number_of_parameters(
    entry: Recommended,
):
    config = ModelConfig.from_dict(entry.config)
    tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)

    assert entry.model.parameters is not None
    assert sum(map(prod, tensors.values())) == pytest.approx(entry.model.parameters, rel=0.03)


@every_model
def test_size_of_the_variant_is_about_what_its_weights_take_in_memory(entry: Recommended):
    (variant,) = entry.model.variants
    raw = quantised_config(entry.config, variant.name)
    assert raw is not None
    config = ModelConfig.from_dict(raw)
    tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    scheme = "int8" if variant.name == "Q8_0" else "int4-offset"

    # What has 6 bits in the file is held in 8.
    assert 0.85 < weight_bytes(config, tensors, scheme) / variant.nbytes < 1.3


def test_there_are_small_and_large_ones_in_order():
    sizes = [entry.model.variants[0].nbytes for entry in RECOMMENDED]

    assert sizes == sorted(sizes)
    assert sizes[0] < 10**9
    assert sizes[-1] > 40 * 10**9
