"""The families that a test has instead of all have all that it is about: a new family cannot be forgotten."""

from fast_families import GENERATED, SPECIFIED
from layer_values import kernel_values, lacking, values_of


def test_generated_families_have_all_that_kernels_are_written_for() -> None:
    assert not lacking(GENERATED, kernel_values)


def test_specified_families_have_every_value_of_every_field() -> None:
    assert not lacking(SPECIFIED, values_of)
