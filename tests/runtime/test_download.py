"""Wheels come from servers that break, lie and refuse, and arrive whole or not at all."""

import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_wheels import make_wheels, wheel_of
from wheel_server import WheelServer, serving

from potluck.errors import DiskFullError, HubError, IntegrityError, OfflineError
from potluck.runtime.download import Internet, Patience
from potluck.runtime.lock import Wheel
from potluck.runtime.stopping import StoppedError
from potluck.store.chunks import ChunkStore

pytestmark = pytest.mark.net

QUICK = Patience(silent_s=5.0, attempts=3, pause_s=0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_wheels(tmp_path / "made", filling=300_000)[0]


@pytest.fixture
def store(tmp_path: Path) -> Generator[ChunkStore]:
    with ChunkStore(tmp_path / "wheels", 10 << 20, reserve=0) as store:
        yield store


@pytest.fixture
def server(path: Path) -> Generator[WheelServer]:
    with serving(WheelServer({f"/files/{path.name}": path.read_bytes()})) as server:
        yield server


@pytest.fixture
def wheel(path: Path, server: WheelServer) -> Wheel:
    return wheel_of(path, f"{server.address}/files/{path.name}")


def fetch(store: ChunkStore, wheel: Wheel, index: str | None = None) -> int:
    internet = Internet(store, index=index, patience=QUICK)
    return internet.fetch(wheel, lambda *_: None, threading.Event())


def test_a_wheel_arrives_with_its_bytes_and_tells_how_far_it_is(store, wheel, path) -> None:
    told: list[int] = []

    came = Internet(store).fetch(wheel, lambda _, here: told.append(here), threading.Event())

    assert store.path(wheel.digest).read_bytes() == path.read_bytes()
    assert came == told[-1] == wheel.nbytes


def test_what_is_here_is_not_asked_for(store, wheel, server) -> None:
    fetch(store, wheel)

    assert fetch(store, wheel) == 0
    assert server.asked == [""]


def test_a_cut_download_goes_on_where_it_was(store, wheel, server) -> None:
    server.cuts, server.cut_after = 2, 100_000

    assert fetch(store, wheel) == wheel.nbytes

    assert server.asked == ["", "bytes=100000-", "bytes=200000-"]


def test_a_server_without_ranges_that_is_cut_once_sends_all_again(
    store, wheel, server, path
) -> None:
    server.ranges, server.cuts, server.cut_after = False, 1, 100_000

    assert fetch(store, wheel) == wheel.nbytes + 100_000
    assert store.path(wheel.digest).read_bytes() == path.read_bytes()


def test_a_server_that_never_gets_further_is_given_up(store, wheel, server) -> None:
    server.ranges, server.cuts, server.cut_after = False, 1000, 100_000

    with pytest.raises(OfflineError, match="Internet connection"):
        fetch(store, wheel)

    assert len(server.asked) <= 2 * QUICK.attempts
    assert store.offset(wheel.digest) == 100_000  # kept for the next time


def test_nobody_who_answers_is_an_error_in_words(store, path) -> None:
    with pytest.raises(OfflineError, match="does not send"):
        fetch(store, wheel_of(path, "http://127.0.0.1:9/torch.whl"))


class Pauses(threading.Event):
    """Notes for how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


def test_a_server_that_never_answered_is_tried_once_more_since_others_of_the_home_may_reach_it(
    store, path
) -> None:
    pauses, nobody = Pauses(), wheel_of(path, "http://127.0.0.1:9/torch.whl")

    with pytest.raises(OfflineError):
        Internet(store).fetch(nobody, lambda *_: None, pauses)

    assert pauses.seconds == [1.0]


def test_a_server_that_answered_is_waited_for_half_a_minute(store, wheel, server) -> None:
    pauses = Pauses()
    server.statuses = [503] * 6

    with pytest.raises(OfflineError):
        Internet(store).fetch(wheel, lambda *_: None, pauses)

    assert pauses.seconds == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks9://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_settings_that_cannot_be_used_are_an_error_in_words(
    store, wheel, monkeypatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(HubError, match=r"settings of this computer.*HTTPS_PROXY"):
        fetch(store, wheel)


@pytest.mark.parametrize(
    "url", ["http://[", "http://a\0b/x", "http://127.0.0.1:port/x", "http://xn--/x"]
)
def test_an_address_that_is_none_is_an_error_in_words(store, path, url: str) -> None:
    with pytest.raises(HubError):
        fetch(store, wheel_of(path, url))
    with pytest.raises(HubError):
        fetch(store, wheel_of(path), url)
    assert Internet(store).server(wheel_of(path, "http://[")) == ""


def test_other_bytes_than_listed_are_deleted(store, wheel, server) -> None:
    name = next(iter(server.files))
    server.files[name] = bytes(wheel.nbytes)

    with pytest.raises(IntegrityError, match="other bytes"):
        fetch(store, wheel)

    assert store.nbytes == 0


def test_more_bytes_than_listed_are_not_kept(store, wheel, server) -> None:
    name = next(iter(server.files))
    server.files[name] += bytes(5 << 20)

    with pytest.raises(IntegrityError):
        fetch(store, wheel)

    assert store.nbytes == 0


@pytest.mark.parametrize("status", [401, 403, 404, 410, 301])
def test_a_server_that_refuses_is_named(store, wheel, server, status: int) -> None:
    server.statuses = [status]

    with pytest.raises(HubError, match=rf"127\.0\.0\.1.*{status}"):
        fetch(store, wheel)


def test_a_busy_server_is_asked_again(store, wheel, server) -> None:
    server.statuses = [503, 429]

    assert fetch(store, wheel) == wheel.nbytes


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(store, wheel, server, path) -> None:
    store.append(wheel.digest, 0, wheel.nbytes, bytes(wheel.nbytes - 1))

    with pytest.raises(IntegrityError):
        fetch(store, wheel)  # the part had other bytes; it is gone

    assert fetch(store, wheel) == wheel.nbytes


@pytest.mark.parametrize("is_html", [False, True])
def test_an_index_of_the_owner_is_asked_in_place_of_the_address(
    store, server, path, is_html
) -> None:
    server.is_html = is_html
    elsewhere = wheel_of(path, "https://nowhere.invalid/torch.whl")

    assert fetch(store, elsewhere, f"{server.address}/simple") == elsewhere.nbytes


def test_an_index_without_the_file_is_named(store, server, tmp_path) -> None:
    _, other = make_wheels(tmp_path / "others")

    with pytest.raises(HubError, match=r"does not have sympy"):
        fetch(store, wheel_of(other), f"{server.address}/simple")


def test_a_wheel_without_an_address_is_not_looked_for(store, path) -> None:
    assert Internet(store).server(wheel_of(path)) == ""
    with pytest.raises(HubError, match="does not say where"):
        fetch(store, wheel_of(path))


def test_a_stopped_download_keeps_what_came(store, wheel) -> None:
    stopped, told = threading.Event(), list[int]()

    def arrived(_: Wheel, here: int) -> None:
        told.append(here)
        stopped.set()

    with pytest.raises(StoppedError):
        Internet(store).fetch(wheel, arrived, stopped)

    assert [store.offset(wheel.digest)] == told


def test_a_full_store_is_an_error_in_words(tmp_path, wheel) -> None:
    with ChunkStore(tmp_path / "small", 1000, reserve=0) as store, pytest.raises(DiskFullError):
        fetch(store, wheel)


def test_a_package_of_potluck_is_in_no_index_and_comes_from_its_address(store, wheel) -> None:
    package = replace(wheel, tags=frozenset())

    assert fetch(store, package, index="http://127.0.0.1:9/simple") == wheel.nbytes
