"""Fetches pictures from the Internet, where the user allows it (`potluck serve --fetch-pictures`).

An address comes from a program, and perhaps from a stranger's text in it. So it must not reach what only this computer can
reach: a router's page, a service on loopback. Each name is looked up here, all that it stands for has to be on the
Internet, and the connection goes to just what was looked up. There are no cookies, passwords or proxies.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

import httpx

from potluck import __version__
from potluck.errors import UsageError, format_bytes
from potluck.net.interfaces import own_interfaces
from potluck.reasons import reason

DEADLINE_S = 20.0  # for a picture, with all redirects
MOST_REDIRECTS = 3
MOST_AT_ONCE = 4
_SHOWN = 80  # characters of an address in a sentence
# The last 32 bits are an IPv4 address: RFC 6052, and the forms before it (RFC 4291).
_WITH_IPV4 = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # RFC 8215

Ip: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[Ip]]]


def is_on_the_internet(ip: Ip) -> bool:
    """Whether everyone can reach this address, so that reaching it from here gives nobody more."""
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if any(ip in network for network in _WITH_IPV4):
            inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_on_the_internet(inner)
        if ip in _LOCAL_NAT64 or ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast


def is_elsewhere(ip: Ip) -> bool:
    """Whether this address is on the Internet, and in no network of this computer: IPv6 gives homes global ones."""
    return is_on_the_internet(ip) and not any(ip in network for network in _own_networks())


def _own_networks() -> frozenset[IPv4Network | IPv6Network]:
    return frozenset(
        ip_network(f"{own.address}/{own.prefix}", strict=False) for own in own_interfaces()
    )


async def look_up(host: str, port: int) -> list[Ip]:
    """What a name stands for, the best first.

    Raises:
        OSError: nobody knows it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]


class WebPictures:
    """Fetches the files of pictures."""

    def __init__(
        self,
        *,
        look_up: Resolve = look_up,
        may_reach: Callable[[Ip], bool] = is_elsewhere,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._look_up = look_up
        self._may_reach = may_reach
        self._deadline_s = deadline_s
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._trust: ssl.SSLContext | None = None  # made once: reading the certificates takes 20 ms

    async def fetch(self, address: str, most: int) -> bytes:
        """Return the file at an http or https address, if it has at most so many bytes.

        Raises:
            UsageError: it cannot be had.
        """
        shown = address if len(address) <= _SHOWN else f"{address[:_SHOWN]}…"
        try:
            async with self._places, asyncio.timeout(self._deadline_s):
                return await self._follow(address, shown, most)
        except TimeoutError:
            why = f"did not come within {self._deadline_s:.0f} seconds"
        except socket.gaierror:
            why = "cannot be fetched: nobody knows that name"
        except (ssl.SSLError, httpx.ConnectError):
            why = "cannot be reached, or its certificate is not valid"
        except (OSError, httpx.HTTPError) as error:
            why = f"cannot be fetched: {reason(error, otherwise='the connection broke')}"
        raise UsageError(
            f"The picture at {shown} {why}. Try again later, or send the picture itself."
        )

    async def _follow(self, address: str, shown: str, most: int) -> bytes:
        url = _checked(address, shown)
        for _ in range(1 + MOST_REDIRECTS):
            found = await self._get(url, shown, most)
            if isinstance(found, bytes):
                return found
            url = _checked(str(url.join(found)), shown)
        raise UsageError(f"The picture at {shown} leads from address to address without an end.")

    async def _get(self, url: httpx.URL, shown: str, most: int) -> bytes | str:
        """The file, or where it is said to lie."""
        port = url.port or (443 if url.scheme == "https" else 80)
        reached = await self._look_up(url.host, port)
        if not reached or not all(map(self._may_reach, reached)):
            raise UsageError(
                f"The picture at {shown} is not on the Internet but in a network of its own, such as this home's."
                " Potluck fetches nothing there for programs. Send the picture itself."
            )
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "User-Agent": f"potluck/{__version__}",
        }
        if self._trust is None:
            self._trust = httpx.create_ssl_context()
        async with (
            httpx.AsyncClient(verify=self._trust, trust_env=False) as client,
            client.stream(
                "GET",
                url.copy_with(host=str(reached[0])),
                headers=headers,
                extensions={
                    "sni_hostname": url.raw_host.decode("ascii")
                },  # the certificate is that of the name
            ) as response,
        ):
            if response.has_redirect_location:
                return response.headers["location"]
            return await _body(response, shown, most)


async def _body(response: httpx.Response, shown: str, most: int) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise UsageError(
            f"The picture at {shown} cannot be had: its server answers with status {response.status_code}."
        )
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            raise UsageError(
                f"The picture at {shown} has more than the {format_bytes(most)} that are left for the pictures of a request. Send a smaller one."
            )
    if not body:
        raise UsageError(f"There is nothing at {shown}. Send the picture itself.")
    return bytes(body)


def _checked(address: str, shown: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
        host = url.host and url.raw_host.decode("ascii").encode("idna")  # labels of 1 to 63 letters
    except (httpx.InvalidURL, UnicodeError, ValueError):
        url, host = httpx.URL(""), ""
    is_whole = host and url.port != 0 and (url.port or 1) < 1 << 16
    if url.scheme not in ("http", "https") or not is_whole or url.userinfo:
        raise UsageError(
            f"{shown} is no address of a picture: it has to begin with https:// or http://, without a password."
        )
    return url
