"""What sending weights costs: `python tests/bench_transfer.py [options]`. Not a test.

Two processes, which send a file over TLS, in turn as

- *weights*: `send_tensors` and `receive_tensors` over a `weights` link, as nodes do. The receiver hashes
  and stores them.
- *plain*: blocking TLS sockets of the standard library, which send the same file from memory and throw
  it away. No program can do much less.

Printed are the rate, and the CPU seconds per GB of both processes. The latter hardly depend on what else
the computer does. By default both talk over loopback. For another network, say how a command is started
on the receiver's host, and its address there:

    python tests/bench_transfer.py --on "ip netns exec b" --host 10.0.0.2
"""

import argparse
import asyncio
import hashlib
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from potluck.ids import Digest
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.listener import Listener
from potluck.net.transport import dial
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.source import TensorSource
from potluck.wire.certificates import tls_name
from potluck.wire.messages import Address, NeedTensor, NodeInfo

TENSOR = 32 << 20  # bytes: a matrix
PIECE = 1 << 20  # bytes that the plain sockets send and receive at once
GB = 1e9


def cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def info(identity: Identity) -> NodeInfo:
    return NodeInfo(node_id=identity.node_id, name="bench", version="0", os="", arch="")


def digests(folder: Path) -> list[Digest]:
    return [Digest(digest) for digest in (folder / "digests").read_text().split()]


# --- the receiver


def serve(folder: Path) -> None:
    """Receive once over each; print the ports first, and after each transfer the CPU seconds."""
    identity = Identity.load(folder / "worker")
    asyncio.run(receive_weights(identity, folder))
    receive_plain(identity)


def say(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


async def receive_weights(identity: Identity, folder: Path) -> None:
    is_over = asyncio.Event()

    async def store(link: Link) -> None:
        with ChunkStore(folder / "store") as chunks:
            began = cpu_s()
            await receive_tensors(link, chunks, dict.fromkeys(digests(folder), TENSOR))
        say(cpu_s() - began)
        is_over.set()

    async with Listener(identity, me=lambda: info(identity), on_link=store) as listener:
        say(listener.port)
        await is_over.wait()


def receive_plain(identity: Identity) -> None:
    with socket.create_server(("", 0)) as listening:
        say(listening.getsockname()[1])
        accepted, _ = listening.accept()
    with identity.server_context().wrap_socket(accepted, server_side=True) as sock:
        buffer, began = memoryview(bytearray(PIECE)), cpu_s()
        while sock.recv_into(buffer):
            pass
        say(cpu_s() - began)


# --- the sender


def send_weights(
    identity: Identity, worker: Identity, to: Address, folder: Path
) -> tuple[float, float]:
    """Seconds, and CPU seconds of them."""
    return asyncio.run(_send_weights(identity, worker, to, folder))


async def _send_weights(
    identity: Identity, worker: Identity, to: Address, folder: Path
) -> tuple[float, float]:
    sources = {
        digest: TensorSource(path=folder / "model", offset=number * TENSOR, nbytes=TENSOR)
        for number, digest in enumerate(digests(folder))
    }
    assert identity.own_home is not None
    home = identity.own_home.home_id
    link = await dial(
        [to], identity, home=home, peer=worker.node_id, purpose="weights", me=info(identity)
    )
    began, began_cpu = time.perf_counter(), cpu_s()
    await send_tensors(link, [NeedTensor(digest=digest, offset=0) for digest in sources], sources)
    seconds, cpu = time.perf_counter() - began, cpu_s() - began_cpu
    link.close()
    await link.wait_closed()
    return seconds, cpu


def send_plain(
    identity: Identity, worker: Identity, to: Address, folder: Path
) -> tuple[float, float]:
    """Seconds, and CPU seconds of them."""
    assert identity.own_home is not None
    home = identity.own_home.home_id
    context, name = identity.client_context(home), tls_name(worker.node_id, home)
    data = memoryview((folder / "model").read_bytes())
    with context.wrap_socket(
        socket.create_connection((to.host, to.port)), server_hostname=name
    ) as sock:
        began, began_cpu = time.perf_counter(), cpu_s()
        for start in range(0, len(data), PIECE):
            sock.sendall(data[start : start + PIECE])
        seconds, cpu = time.perf_counter() - began, cpu_s() - began_cpu
    return seconds, cpu


WAYS = {"weights": send_weights, "plain": send_plain}


def prepare(folder: Path, tensors: int) -> tuple[Identity, Identity]:
    """Make a file of random tensors, and the identities of a home: master, worker."""
    found: list[str] = []
    with (folder / "model").open("wb") as file:
        for _ in range(tensors):
            data = os.urandom(TENSOR)
            found.append(hashlib.sha256(data).hexdigest())
            file.write(data)
    (folder / "digests").write_text("\n".join(found))
    master = Identity.load_or_create(folder / "master", "master")
    worker = Identity.load_or_create(folder / "worker", "worker")
    home = master.create_home("bench")
    worker.add_home(
        ca_pem=home.ca_pem,
        certificate_pem=master.issue(worker.certificate_der),
        name="bench",
        master=master.node_id,
    )
    return master, worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1000, help="the size of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--on", default="", help="how a command is started on the receiver's host")
    parser.add_argument("--host", default="127.0.0.1", help="the receiver's address")
    parser.add_argument("--serve", type=Path, help="be the receiver; used by the program itself")
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identities = prepare(folder, max(1, options.mb * 1_000_000 // TENSOR))
        for _ in range(options.rounds):
            run_round(identities, folder, shlex.split(options.on), options.host)


def run_round(
    identities: tuple[Identity, Identity], folder: Path, on: list[str], host: str
) -> None:
    gb = (folder / "model").stat().st_size / GB
    command = [*on, sys.executable, __file__, "--serve", str(folder)]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    try:
        for way, send in WAYS.items():
            to = Address(host=host, port=int(receiver.stdout.readline()))
            seconds, sender_s = send(*identities, to, folder)
            receiver_s = float(receiver.stdout.readline())
            say(
                f"{way}: {gb / seconds * 1000:.0f} MB/s;"
                f" CPU s/GB: sender {sender_s / gb:.2f}, receiver {receiver_s / gb:.2f}"
            )
    finally:
        receiver.terminate()
        receiver.wait()
    shutil.rmtree(folder / "store")


if __name__ == "__main__":
    main()
