"""A socket that never blocks and its TLS, over loopback."""

import asyncio
import select
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tls_sides import join, make

from potluck.net.secure_socket import SecureSocket
from potluck.wire.certificates import tls_name
from potluck.wire.messages import Address

pytestmark = pytest.mark.net

Run = Callable[[Coroutine[object, object, None]], None]


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[SecureSocket, SecureSocket]]:
    """Who dialled, and who was dialled."""
    master, worker = make(folder, "master"), make(folder, "worker")
    home = join(master, worker)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = Address(host="127.0.0.1", port=listener.getsockname()[1])
        name = tls_name(worker.node_id, home)

        async def accept() -> SecureSocket:
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            return await SecureSocket.accept(accepted, worker.server_context())

        dialling = SecureSocket.connect(address, master.client_context(home), name)
        ours, theirs = await asyncio.gather(dialling, accept())
    try:
        yield ours, theirs
    finally:
        ours.abort()
        theirs.abort()


def read(secure: SecureSocket, count: int) -> bytes:
    """Wait for so many bytes, or the end."""
    got, piece = bytearray(), memoryview(bytearray(1 << 16))
    while len(got) < count:
        taken = secure.read_into(piece)
        if taken is None:
            assert select.select([secure], [], [], 10)[0], f"{len(got)} of {count} bytes came"
            secure.fill()
        elif taken == 0:
            break
        else:
            got += piece[:taken]
    return bytes(got)


def test_what_is_written_is_read_whatever_its_size(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            sent = b"a step", b"", bytes(range(256)) * 100, b"another"
            ours.write(sent)
            assert read(theirs, sum(map(len, sent))) == b"".join(sent)
            theirs.write([b"an answer"])
            assert read(ours, 9) == b"an answer"

    run(main())


def test_what_the_kernel_does_not_take_is_kept_in_order(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            chunk = bytes(range(251)) * (1 << 16)  # 16 MB: more than a kernel buffers
            ours.write([b"head", chunk])
            ours.write([b"tail"])
            assert ours.backlog_bytes > 0

            got = bytearray()
            while len(got) < len(chunk) + 8:
                ours.send_backlog()
                got += read(theirs, min(1 << 20, len(chunk) + 8 - len(got)))
            assert got == b"head" + chunk + b"tail"
            assert ours.backlog_bytes == 0

    run(main())


def test_memory_is_free_again_once_it_was_written(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            payload = bytearray(b"x" * 1_000_000)
            ours.write([payload])
            payload[:] = bytes(len(payload))
            got = bytearray()
            while len(got) < len(payload):
                ours.send_backlog()
                got += read(theirs, min(1 << 16, len(payload) - len(got)))
            assert got == b"x" * 1_000_000

    run(main())


def test_a_piece_of_a_large_message_leaves_before_the_last_is_encrypted(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, _):
            held: list[int] = []
            hand_over = ours._hand_over

            def watched() -> None:
                held.append(ours._outgoing.pending)
                hand_over()

            monkeypatch.setattr(ours, "_hand_over", watched)
            ours.write([bytes(1 << 21)])
            # OpenSSL's buffer never shrinks: a chunk of a prompt must not grow it.
            assert max(held) < 1 << 19

    run(main())


def test_nothing_there_is_not_the_end(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            piece = memoryview(bytearray(16))
            theirs.fill()
            assert theirs.read_into(piece) is None
            ours.write([b"last words"])
            ours.close()
            assert read(theirs, 100) == b"last words"  # and the end

    run(main())


def test_an_end_that_came_with_the_last_bytes_is_told_after_them(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            ours.write([b"last", bytes(20_000)])  # two records
            await ours.say_end()
            await theirs.receive()
            piece = memoryview(bytearray(1 << 16))
            assert theirs.read_into(piece) == 20_004
            assert [theirs.read_into(piece), theirs.read_into(piece)] == [0, 0]

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="others wake a reader at once")
def test_who_waits_for_many_bytes_is_woken_once_they_are_there(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            waiting = asyncio.create_task(theirs.receive(100_000))
            await asyncio.sleep(0)  # it waits now
            ours.write([bytes(50_000)])
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            ours.write([bytes(50_000)])
            await waiting
            assert (theirs.read_into(memoryview(bytearray(100_000))) or 0) > 60_000

    run(main())


def test_another_computer_than_the_one_called_is_refused(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        master, worker = make(tmp_path, "master"), make(tmp_path, "worker")
        home = join(master, worker)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)

            async def accept() -> None:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                with pytest.raises(OSError, match=r".+"):
                    await SecureSocket.accept(accepted, worker.server_context())

            accepting = asyncio.ensure_future(accept())
            with pytest.raises(ssl.SSLError):
                await SecureSocket.connect(
                    Address(host="127.0.0.1", port=listener.getsockname()[1]),
                    master.client_context(home),
                    tls_name(master.node_id, home),
                )
            await accepting

    run(main())


def test_who_ends_without_a_word_has_ended_too(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (ours, theirs):
            ours.abort()
            assert read(theirs, 1) == b""

    run(main())
