"""Errors that travel between processes as their code and their words."""

import pytest

from potluck.cluster.loss import cannot_load
from potluck.errors import (
    EngineError,
    IntegrityError,
    NotEnoughMemoryError,
    PeerLostError,
    PotluckError,
    by_code,
    format_bytes,
    rebuild,
)


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (999, "999 B"),
        (1000, "1 kB"),
        (190 * 10**6, "190 MB"),
        (5.24e9, "5.2 GB"),
        (20e9, "20 GB"),
        (-2e12, "-2000 GB"),
    ],
)
def test_a_size_has_a_decimal_only_if_it_says_something(nbytes: float, shown: str) -> None:
    assert format_bytes(nbytes) == shown


def test_every_error_has_a_code_of_its_own_to_travel_by() -> None:
    classes = by_code()

    assert classes["integrity"] is IntegrityError
    assert classes["error"] is PotluckError


@pytest.mark.parametrize("code", sorted(by_code()))
def test_every_error_can_be_rebuilt_from_its_words(code: str) -> None:
    error = rebuild(code, "A sentence.", {"needed": 3})

    assert type(error) is by_code()[code]
    assert (error.message, str(error), error.data) == ("A sentence.", "A sentence.", {"needed": 3})


def test_an_error_of_a_code_that_is_not_known_is_the_default() -> None:
    assert type(rebuild("toaster", "A sentence.", {}, default=EngineError)) is EngineError
    assert type(rebuild("toaster", "A sentence.", {})) is PotluckError
    assert isinstance(rebuild("not_enough_memory", "x", {}), NotEnoughMemoryError)


def test_a_peer_may_choose_any_names_for_the_data_of_its_error() -> None:
    """A worker whose error had a `message` in its data ended its master's decisions."""
    data = {"message": "x", "self": "y", "code": 3}

    assert rebuild("busy", "A sentence.", data).data == data
    assert cannot_load(PeerLostError("It is lost."), rebuild("busy", "No.", data)).data == data
