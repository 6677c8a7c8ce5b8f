"""A main computer tells its home of a newer release, over the connections of wheels."""

from pathlib import Path

import pytest
from releases import signed
from tests.cluster.runtime.conftest import Computer, Home

from potluck import __version__
from potluck.api.values.update import HomesVersion
from potluck.cluster.updating.telling import Telling
from potluck.errors import PeerError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def telling(home: Home, *members: Computer, again_s: float = 60.0) -> tuple[Telling, list[object]]:
    """What the main computer tells, and all that it has heard."""
    heard: list[object] = []
    told = Telling(
        home.master.client,
        members=lambda: [member.source(home.id) for member in members],
        envelope=lambda: signed("99.0.0"),
        heard=heard.append,
        again_s=again_s,
    )
    return told, heard


def listen(computer: Computer, answer: str) -> list[bytes]:
    """What a computer is told; it answers with these words."""
    told: list[bytes] = []

    def heard(envelope: bytes) -> str:
        told.append(envelope)
        return answer

    computer.server._heard = heard
    return told


def test_each_computer_of_the_home_is_told_and_its_answer_is_kept(home: Home) -> None:
    desk, sofa = home.add("desk"), home.add("sofa")
    told = [listen(desk, "It updates, too."), listen(sofa, "It asks its owner.")]
    main, heard = telling(home, desk, sofa)

    home.run(main.look)

    assert told == [[signed("99.0.0")], [signed("99.0.0")]]
    assert heard[-1] == {
        desk.identity.node_id: HomesVersion(
            name="desk", version=__version__, message="It updates, too."
        ),
        sofa.identity.node_id: HomesVersion(
            name="sofa", version=__version__, message="It asks its owner."
        ),
    }


def test_one_that_runs_that_version_is_told_no_more(home: Home) -> None:
    desk, sofa = home.add("desk"), home.add("sofa")
    told = [listen(desk, ""), listen(sofa, "It asks its owner.")]
    main, _ = telling(home, desk, sofa, again_s=0.0)

    async def twice() -> None:
        await main.look()
        await main.look()

    home.run(twice)

    assert [len(each) for each in told] == [1, 2]


def test_nobody_is_told_again_at_once(home: Home) -> None:
    desk = home.add("desk")
    told = listen(desk, "It asks its owner.")
    main, _ = telling(home, desk)

    async def twice() -> None:
        await main.look()
        await main.look()

    home.run(twice)

    assert len(told) == 1


def test_what_was_answered_is_dropped_when_there_is_nothing_to_tell_any_more(home: Home) -> None:
    desk, told = home.add("desk"), [signed("99.0.0"), b""]
    listen(desk, "It asks its owner.")
    main, heard = telling(home, desk)
    main._envelope = lambda: told[0]

    async def twice() -> None:
        await main.look()
        assert heard[-1]
        told.pop(0)
        await main.look()

    home.run(twice)

    assert heard[-1] == {}


def test_one_that_is_off_does_not_keep_the_others_from_being_told(home: Home) -> None:
    gone, desk = home.add("gone"), home.add("desk")
    home.computers.remove(gone)
    told = listen(desk, "")
    main, heard = telling(home, gone, desk)

    home.run(main.look)

    assert len(told) == 1
    assert list(heard[-1]) == [desk.identity.node_id]  # type: ignore[call-overload]


def test_only_a_main_computer_is_heard(home: Home) -> None:
    desk = home.add("desk")
    told = listen(home.master, "")

    async def tell() -> None:
        source = home.master.source(home.id)  # its port is known now
        with pytest.raises(PeerError):
            await desk.client.tell(source, signed("99.0.0"))

    home.run(tell)

    assert told == []
