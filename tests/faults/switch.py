"""An Ethernet switch in user space: it joins network namespaces, each by a link of its own.

    python -m faults.switch NAMESPACE…     started by `lan.py`; needs root and /dev/net/tun

In each namespace it makes the interface `eth0` (a TAP device). A link has a latency, a rate and a
loss, may bring frames twice or in another order, and can be cut, as pulling the cable does. A link is changed by a line of JSON on stdin
(`Link` with the namespace), which is answered by `ok`; the switch ends when stdin does.

Frames between two undisturbed links are TCP segments of up to 64 KiB, which the kernels of both
hosts cut and join: a large transfer takes little time here. Where single frames are disturbed or the
rate is limited, they are Ethernet frames of the usual size.
"""

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from faults.namespaces import inside

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD, TUNSETCARRIER = 0x400454CA, 0x400454D0, 0x400454E2
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x04  # checksums, segmentation of TCP over IPv4 and over IPv6
VNET_HEADER = 10  # bytes before each frame: what the kernel has left to do with it
LARGEST_FRAME = VNET_HEADER + 14 + 65536
QUEUE_BYTES = 1 << 20  # that wait for a link; more are dropped, as a switch does
LATE_S = 0.01
FRAMES_AT_A_TIME = 64  # from one port, before the others have their turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a host's cable is like."""

    latency_ms: float = 0.0  # one way
    rate_mbit: float = 0.0  # each way; 0: no limit
    loss_percent: float = 0.0
    twice_percent: float = 0.0  # of the frames arrive twice
    late_percent: float = 0.0  # of the frames arrive after those that were sent `LATE_S` later
    up: bool = True  # False: the cable is pulled

    @property
    def takes_large_frames(self) -> bool:
        disturbed = self.loss_percent, self.twice_percent, self.late_percent
        return not any(disturbed) and not self.rate_mbit


class Port:
    """A TAP device, and the link to its host."""

    def __init__(self, namespace: str) -> None:
        self.link = Link()
        self.sends_from = 0.0  # when the link has sent what came from the host; seconds
        self.receives_from = 0.0  # when it has brought the host all that waits for it
        self.queued = 0  # bytes on the way to the host
        with inside(namespace):
            self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
            fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", b"eth0", flags))

    def change(self, link: Link) -> None:
        if link.up != self.link.up:
            fcntl.ioctl(self.fd, TUNSETCARRIER, struct.pack("i", link.up))
        self.link = link

    def set_offloads(self, *, on: bool) -> None:
        fcntl.ioctl(self.fd, TUNSETOFFLOAD, OFFLOADS if on else 0)


class Switch:
    """The ports, and the frames that are on their way between them."""

    def __init__(self, namespaces: list[str]) -> None:
        self._ports = {namespace: Port(namespace) for namespace in namespaces}
        self._by_fd = {port.fd: port for port in self._ports.values()}
        self._known: dict[bytes, Port] = {}  # by hardware address
        self._on_the_way: list[tuple[float, int, Port, bytes]] = []  # a heap by the time of arrival
        self._count = 0
        self._random = random.Random(0)
        self._set_offloads()

    def run(self) -> None:
        """Switch until stdin ends."""
        poll = select.poll()
        for fd in (sys.stdin.fileno(), *self._by_fd):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll(self._deliver()):
                if fd != sys.stdin.fileno():
                    self._forward(self._by_fd[fd])
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        line = sys.stdin.readline()
        if line:
            command = json.loads(line)
            self._ports[command.pop("host")].change(Link(**command))
            self._set_offloads()
            print("ok", flush=True)
        return bool(line)

    def _set_offloads(self) -> None:
        whole = all(port.link.takes_large_frames for port in self._ports.values())
        for port in self._ports.values():
            port.set_offloads(on=whole)

    def _forward(self, source: Port) -> None:
        for _ in range(FRAMES_AT_A_TIME):
            try:
                frame = os.read(source.fd, LARGEST_FRAME)
            except BlockingIOError:
                return
            to, sender = frame[VNET_HEADER : VNET_HEADER + 6], frame[VNET_HEADER + 6 :][:6]
            self._known[sender] = source
            known = self._known.get(to)
            for target in [known] if known is not None else self._ports.values():
                if target is not source:
                    self._send(source, target, frame)

    def _send(self, source: Port, target: Port, frame: bytes) -> None:
        one, other = source.link, target.link
        if not (one.up and other.up) or self._happens(one.loss_percent + other.loss_percent):
            return
        for _ in range(1 + self._happens(one.twice_percent + other.twice_percent)):
            self._send_once(source, target, frame)

    def _send_once(self, source: Port, target: Port, frame: bytes) -> None:
        one, other = source.link, target.link
        now = time.monotonic()
        source.sends_from = max(source.sends_from, now) + _seconds(frame, one)
        target.receives_from = max(target.receives_from, source.sends_from) + _seconds(frame, other)
        arrives = target.receives_from + (one.latency_ms + other.latency_ms) / 1e3
        arrives += LATE_S * self._happens(one.late_percent + other.late_percent)
        if arrives <= now and not target.queued:
            _write(target.fd, frame)
        elif target.queued + len(frame) <= QUEUE_BYTES:
            target.queued += len(frame)
            self._count += 1
            heapq.heappush(self._on_the_way, (arrives, self._count, target, frame))

    def _happens(self, percent: float) -> bool:
        return percent > 0 and self._random.uniform(0, 100) < percent

    def _deliver(self) -> float | None:
        """Deliver what is due. Return the milliseconds until the next frame is; None: there is none."""
        while self._on_the_way:
            arrives, _, target, frame = self._on_the_way[0]
            wait_s = arrives - time.monotonic()
            if wait_s > 0:
                return wait_s * 1e3
            heapq.heappop(self._on_the_way)
            target.queued -= len(frame)
            if target.link.up:
                _write(target.fd, frame)
        return None


def _seconds(frame: bytes, link: Link) -> float:
    return len(frame) * 8 / (link.rate_mbit * 1e6) if link.rate_mbit else 0.0


def _write(fd: int, frame: bytes) -> None:
    with suppress(OSError):  # the host takes no frames now: its interface is down or its queue full
        os.write(fd, frame)


if __name__ == "__main__":
    switch = Switch(sys.argv[1:])
    print("ok", flush=True)
    switch.run()
