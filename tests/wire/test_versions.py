"""Which version of the protocol two computers speak, and what they say when there is none."""

import pytest
from connection_pair import Pair, bytes_of, node, receive

from potluck.errors import VersionMismatchError
from potluck.wire.connection import Connection
from potluck.wire.lifecycle import Side, State
from potluck.wire.messages import Error, Welcome


def test_the_highest_version_that_both_speak_is_chosen() -> None:
    pair = Pair(dialler={"versions": (1, 2, 3)}, listener={"versions": (2, 3, 4)}).open()

    assert pair.a.version == pair.b.version == 3


def test_versions_without_a_common_one_are_a_sentence_on_both_sides() -> None:
    pair = Pair(dialler={"versions": (1,)}, listener={"versions": (2, 3)})
    pair.a.start()
    pair.carry()

    for connection in (pair.a, pair.b):
        error = pair.errors[connection]
        assert isinstance(error, VersionMismatchError)
        assert "Computer a runs Potluck 0.1.0 (protocol 1)" in str(error)
        assert "Computer b runs Potluck 0.1.0 (protocol 2, 3)" in str(error)
        assert "Update Potluck on Computer a." in str(error)
        assert connection.state is State.FAILED


def test_a_version_that_was_not_offered_is_a_mismatch() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    receive(dialler, bytes_of(Welcome(version=9, node=node("b"))), 0)

    with pytest.raises(VersionMismatchError, match=r"protocol 9.*Update Potluck on Computer a"):
        dialler.next_event()


def test_a_mismatch_may_carry_any_data() -> None:
    dialler = Connection(Side.DIALLER, node("a"), now=0, purpose="control")
    dialler.start()
    mismatch = Error(kind="version_mismatch", message="No.", data={"message": "x", "self": 1})
    receive(dialler, bytes_of(mismatch), 0)

    with pytest.raises(VersionMismatchError, match="No"):
        dialler.next_event()
