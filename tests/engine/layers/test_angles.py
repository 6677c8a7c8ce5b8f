"""Cosines and sines are those of the C library in 64 bits, and made of single operations alone."""

import math

import numpy as np
import pytest

from potluck.engine.layers.angles import cosines_and_sines

COSINES = [
    "0x1.c1528065b7d50p-1",
    "-0x1.fae04be85e5d2p-1",
    "-0x1.fa8f2ceb78372p-1",
    "0x1.d995798893055p-1",
]
SINES = [
    "0x1.eaee8744b05f0p-2",
    "0x1.210386db6d55bp-3",
    "0x1.29c531dfd031bp-3",
    "-0x1.852a2de96b0b3p-2",
]


@pytest.mark.parametrize("largest", [0.0, 1e-9, 1.0, 7.0, 1000.0, 1e6])
def test_they_are_right_in_every_quarter_of_the_circle(largest: float) -> None:
    angles = np.random.default_rng(0).uniform(-largest, largest, (40, 25))

    cosines, sines = cosines_and_sines(angles)

    assert cosines.shape == sines.shape == angles.shape
    for angle, cosine, sine in zip(angles.flat, cosines.flat, sines.flat, strict=True):
        assert cosine == pytest.approx(math.cos(angle), abs=1e-15)
        assert sine == pytest.approx(math.sin(angle), abs=1e-15)


def test_they_are_the_same_on_every_computer() -> None:
    # Python"s floats are those of IEEE 754; these are the bits that they give.
    cosines, sines = cosines_and_sines(np.array([0.5, 3.0, 1234.5, 98765.0]))

    assert [value.hex() for value in cosines] == COSINES
    assert [value.hex() for value in sines] == SINES
