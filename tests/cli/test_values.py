import argparse

import pytest

from potluck.cli.values import layers, name, number, size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GB", 8 * 10**9), ("512 MiB", 512 * 2**20), ("4000000", 4_000_000), ("1.5g", 1.5e9)],
)
def test_a_size_is_read_as_people_write_it(text: str, nbytes: float) -> None:
    assert size(text) == nbytes


def test_shares_keep_their_order_and_names_may_have_signs() -> None:
    assert layers("my=pc=2, there =4") == (("my=pc", 2), ("there", 4))


def test_a_name_loses_the_space_around_it() -> None:
    assert name(" Living room ") == "Living room"


def test_a_number_is_within_its_bounds() -> None:
    assert number(int, 1, 64)("64") == 64
    assert number(float, 0, 100)("0.5") == 0.5


@pytest.mark.parametrize("text", ["many", "8XB", "-1GB", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        size(text)


@pytest.mark.parametrize("text", ["desktop", "=3", "desktop=", "desktop=x", "a=1,,b=2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=N"):
        layers(text)


@pytest.mark.parametrize("text", ["", "  ", "a" * 129, "two\nlines"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="visible characters"):
        name(text)


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [
        (1, 1 << 20, "from 1 to 1048576$"),
        (0.5, 2.0, "from 0.5 to 2$"),
        (1, float("inf"), "of 1 or more$"),
    ],
)
def test_bounds_are_written_in_full(low: float, high: float, span: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=span):
        number(float, low, high)("none")


@pytest.mark.parametrize("text", ["0", "65", "1.5", "many"])
def test_what_is_no_such_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number from 1 to 64"):
        number(int, 1, 64)(text)
