"""What the tests of the protocol share: an open connection, and two computers that pair."""

import pytest
from connection_pair import Pair
from wire_pairs import NOW, Computer, master_by_sight

from potluck.wire.pairing_by_sight import MasterBySight, WorkerBySight


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


@pytest.fixture
def main() -> Computer:
    return Computer("Main")


@pytest.fixture
def laptop() -> Computer:
    return Computer("Laptop")


@pytest.fixture
def master(main: Computer, laptop: Computer) -> MasterBySight:
    return master_by_sight(main, laptop)


@pytest.fixture
def worker(laptop: Computer) -> WorkerBySight:
    return WorkerBySight(laptop.me(), now=NOW)
