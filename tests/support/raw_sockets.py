"""Connections to a listener that need not speak its language."""

import asyncio
import socket

from potluck.net.transport import Link, PairingLink
from potluck.wire.messages import Address


async def ends(sock: socket.socket) -> bytes:
    """What the other side says until it ends the connection."""
    loop = asyncio.get_running_loop()
    received = b""
    try:
        while data := await loop.sock_recv(sock, 1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


async def close(*links: Link | PairingLink) -> None:
    for link in links:
        link.close()
        await link.wait_closed()


async def connect(address: Address) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    return sock
