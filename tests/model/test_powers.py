"""Powers and logarithms are rounded once, so that no computer differs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.model.powers import natural_logarithm, power

bases = st.floats(1e-3, 1e12)


@given(base=bases, exponent=st.floats(-4, 4))
def test_a_power_is_at_most_one_digit_from_the_system_s(base: float, exponent: float) -> None:
    expected = base**exponent

    assert abs(power(base, exponent) - expected) <= math.ulp(expected)


@given(x=bases)
def test_a_logarithm_is_at_most_one_digit_from_the_system_s(x: float) -> None:
    expected = math.log(x)

    assert abs(natural_logarithm(x) - expected) <= math.ulp(expected)


@pytest.mark.parametrize(
    ("base", "exponent", "bits"),
    [
        (10000.0, 0.03125, "0x1.5561a91ba8144p+0"),
        (5e5, 0.984375, "0x1.8dc3277bc0b87p+18"),
        (1e6, 1 / 3, "0x1.8fffffffffffep+6"),
        (80.0, -0.5, "0x1.c9f25c5bfedd9p-4"),
    ],
)
def test_a_power_has_these_bits(base: float, exponent: float, bits: str) -> None:
    assert power(base, exponent).hex() == bits


@pytest.mark.parametrize(
    ("x", "bits"),
    [(2.0, "0x1.62e42fefa39efp-1"), (32.0, "0x1.bb9d3beb8c86bp+1"), (1e4, "0x1.26bb1bbb55516p+3")],
)
def test_a_logarithm_has_these_bits(x: float, bits: str) -> None:
    assert natural_logarithm(x).hex() == bits
