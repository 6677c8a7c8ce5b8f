"""Pictures are fetched from the Internet alone, whatever their addresses say, and never without an end."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address

import pytest

from potluck.errors import UsageError
from potluck.front.web_pictures import (
    MOST_REDIRECTS,
    Ip,
    WebPictures,
    is_elsewhere,
    is_on_the_internet,
)
from potluck.net.interfaces import own_interfaces

FILE = b"\x89PNG and more"
BY_PATH = {
    b"/cat.png": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(FILE), FILE),
    b"/moved": b"HTTP/1.1 302 Found\r\nLocation: /cat.png\r\nContent-Length: 0\r\n\r\n",
    b"/round": b"HTTP/1.1 302 Found\r\nLocation: /round\r\nContent-Length: 0\r\n\r\n",
    b"/router": b"HTTP/1.1 302 Found\r\nLocation: http://router.home/\r\nContent-Length: 0\r\n\r\n",
    b"/disk": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    b"/large": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4096),
    b"/empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"/gone": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    b"/same": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    b"/lost": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    b"/short": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nonly this",
}
OUTSIDE, ROUTER = ip_address("127.0.0.1"), ip_address("192.168.1.1")


class Site:
    """A server on loopback that plays the Internet; what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.port = 0
        self._ended = asyncio.Semaphore(0)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[WebPictures]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield WebPictures(
                look_up=self._look_up,
                may_reach=lambda ip: ip == OUTSIDE,
                deadline_s=5.0,
            )

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        writer.write(BY_PATH[head.split()[1]])
        await _closed(writer)
        self._ended.release()

    async def _look_up(self, host: str, port: int) -> list[Ip]:
        names: dict[str, list[Ip]] = {
            "pictures.example": [OUTSIDE],
            "both.example": [OUTSIDE, ROUTER],
            "router.home": [ROUTER],
        }
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return names[host]

    async def fetch(self, path: str, host: str = "pictures.example") -> bytes:
        async with self.serving() as pictures:
            try:
                return await pictures.fetch(f"http://{host}:{self.port}{path}", 1024)
            finally:
                for _ in self.asked:
                    await self._ended.acquire()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


pytestmark = pytest.mark.net


@pytest.mark.parametrize("path", ["/cat.png", "/moved"])
def test_a_picture_is_fetched_by_the_name_of_its_server(path: str) -> None:
    site = Site()

    assert asyncio.run(site.fetch(path)) == FILE
    assert f"Host: pictures.example:{site.port}".encode() in site.asked[-1]
    assert b"ookie" not in site.asked[-1]


@pytest.mark.parametrize("host", ["router.home", "both.example"])
def test_a_name_of_the_home_is_not_asked(host: str) -> None:
    site = Site()

    with pytest.raises(UsageError, match="not on the Internet"):
        asyncio.run(site.fetch("/cat.png", host))
    assert site.asked == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/router", "not on the Internet"),
        ("/disk", "no address of a picture"),
        ("/round", "without an end"),
        ("/large", "more than the 1 kB"),
        ("/empty", "nothing at"),
        ("/gone", "status 404"),
        ("/same", "status 304"),
        ("/lost", "status 302"),
        ("/short", "cannot be fetched"),
    ],
)
def test_what_is_no_picture_to_be_had_is_said(path: str, words: str) -> None:
    site = Site()

    with pytest.raises(UsageError, match=words):
        asyncio.run(site.fetch(path))
    assert len(site.asked) <= 1 + MOST_REDIRECTS


def test_a_name_that_nobody_knows_and_a_server_that_is_silent_are_said() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await _closed(writer)
        ended.set()

    ended = asyncio.Event()

    async def main() -> None:
        with pytest.raises(UsageError, match="cannot be fetched"):
            await Site().fetch("/cat.png", "nobody.example")
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            impatient = WebPictures(may_reach=lambda _: True, deadline_s=0.05)
            with pytest.raises(UsageError, match="did not come within"):
                await impatient.fetch(f"http://127.0.0.1:{port}/", 1024)
            await ended.wait()

    asyncio.run(main())


@pytest.mark.parametrize(
    "address",
    [
        "ftp://example.org/cat.png",
        "http://",
        "http://a..b/",
        "http://xn--/",
        "http://example.org:99999/",
        f"http://{'a' * 70}.org/",
        "http://name:word@example.org/",
        "http://[::",
        "cat.png",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a picture"):
        asyncio.run(WebPictures().fetch(address, 1024))


@pytest.mark.parametrize(
    "own",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.251",
        "0.0.0.0",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:192.168.1.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "fec0::1",
        "64:ff9b:1::a00:1",
        "::7f00:1",
    ],
)
def test_addresses_of_homes_and_computers_are_not_on_the_internet(own: str) -> None:
    assert not is_on_the_internet(ip_address(own))


def test_an_address_in_a_network_of_this_computer_is_of_the_home() -> None:
    assert not any(is_elsewhere(own.ip) for own in own_interfaces())
    assert is_elsewhere(ip_address("93.184.216.34"))


@pytest.mark.parametrize("ip", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_those_of_the_internet_are(ip: str) -> None:
    assert is_on_the_internet(ip_address(ip))


@pytest.mark.parametrize("host", ["2130706433", "127.1", "localhost", "[::1]", "[::ffff:7f00:1]"])
def test_loopback_is_known_however_it_is_written(host: str) -> None:
    with pytest.raises(UsageError, match="not on the Internet"):
        asyncio.run(WebPictures().fetch(f"http://{host}/cat.png", 1024))
