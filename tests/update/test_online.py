"""The server of releases is asked for one small file, and not for ever."""

from collections.abc import Callable, Generator

import pytest
from wheel_server import WheelServer, serving

from potluck.errors import HubError, OfflineError
from potluck.update.envelope import MOST_BYTES
from potluck.update.online import newest


@pytest.fixture
def server() -> Generator[WheelServer]:
    with serving(WheelServer()) as server:
        yield server


def looked_at(*times: float) -> Callable[[], float]:
    """A clock that says these, one after the other."""
    left = iter(times)
    return lambda: next(left)


def test_what_the_server_has_is_taken_as_it_is(server: WheelServer) -> None:
    server.files["/release.json"] = b"an envelope"

    assert newest(f"{server.address}/release.json") == b"an envelope"


@pytest.mark.parametrize("times", [(0.0, 31.0), (0.0, 29.0, 31.0)], ids=["answer", "bytes"])
def test_a_server_that_takes_too_long_for_all_of_it_is_left(
    server: WheelServer, times: tuple[float, ...]
) -> None:
    server.files["/release.json"] = b"an envelope"

    with pytest.raises(OfflineError, match="too slow"):
        newest(f"{server.address}/release.json", clock=looked_at(*times))


def test_a_file_that_is_too_large_is_not_read_to_its_end(server: WheelServer) -> None:
    server.files["/release.json"] = bytes(MOST_BYTES + 1)

    with pytest.raises(HubError, match="something else"):
        newest(f"{server.address}/release.json")
