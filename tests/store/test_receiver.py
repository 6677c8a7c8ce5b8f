import asyncio
import errno
import shutil
import threading
from itertools import count
from pathlib import Path

import pytest
from memory_links import link_pair
from transfers import bytes_of, expected_of, is_complete, needs, run, transfer

from potluck.errors import (
    DiskFullError,
    PeerTimeoutError,
    RemoteError,
    RemoteProtocolError,
    StoreError,
)
from potluck.ids import Digest
from potluck.store import part, receiver
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors
from potluck.wire.messages import Chunk, Message, Ping, Stored

OTHER = "ab" * 32


def test_disk_that_is_slow_stops_the_receiver_from_taking_more(model, store, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()
    append = store.append

    def stuck(*args) -> bool:
        reached.set()
        assert go_on.wait(20)
        return append(*args)

    async def held() -> int:
        here, there = link_pair(capacity=1)
        task = asyncio.create_task(transfer(store, model, here, there))
        await asyncio.to_thread(reached.wait, 20)
        before = -1
        while len(here.sent) != before:  # until nothing moves any more
            before = len(here.sent)
            for _ in range(100):
                await asyncio.sleep(0)
        go_on.set()
        assert await task == [model.manifest.nbytes] * 2
        return before

    monkeypatch.setattr(ChunkStore, "append", lambda _self, *args: stuck(*args))
    taken = run(held())

    # in the thread's hands, in the queue, waiting for the queue, in the link
    assert taken <= 1 + receiver.QUEUE_CHUNKS + 1 + 1
    assert is_complete(store, model)


def test_tensor_that_came_from_elsewhere_meanwhile_is_stored_at_once(model, store):
    digest, size = next((one, s) for one, s in expected_of(model).items() if s == 8192)
    data = bytes_of(model, digest)

    async def both() -> tuple[int, Message]:
        here, there = link_pair(capacity=1)
        receiving = asyncio.create_task(receive_tensors(there, store, {digest: size}))
        for start in (0, 100):  # there is room for the second when the first was taken
            await here.send(Chunk(digest=digest, offset=start, total=size), data[start:][:100])
        store.write(digest, 0, size, data)
        third = Chunk(digest=digest, offset=200, total=size)
        sending = asyncio.create_task(here.send(third, data[200:300]))
        message, _ = await here.receive()
        received = await receiving
        sending.cancel()  # it may have been over before
        return received, message

    received, message = run(both())

    assert received <= 300
    assert message == Stored(digest=digest)


def test_peer_that_is_lost_after_everything_was_stored_is_no_error(model, store):
    async def deaf_sender() -> int:
        here, there = link_pair(capacity=1000)
        for digest in model.sources:
            data = bytes_of(model, digest)
            await here.send(Chunk(digest=digest, offset=0, total=len(data)), data)
        await here.cut()
        return await receive_tensors(there, store, expected_of(model))

    assert run(deaf_sender()) == model.manifest.nbytes
    assert is_complete(store, model)


@pytest.mark.parametrize("chunks", [1, 7, 40])
def test_store_that_is_deleted_during_a_transfer_gets_what_it_lost_again(model, store, chunks):
    """The chunks on the way to a tensor that was begun are of no use, and harm nothing."""

    async def deleted() -> list[object]:
        here, there = link_pair()
        sent = count(1)

        def deleting(_: Message, payload: bytes) -> bytes:
            if next(sent) == chunks:
                # What is written meanwhile may keep a folder from being removed.
                shutil.rmtree(store.root, ignore_errors=True)
            return payload

        here.tamper = deleting
        return await transfer(store, model, here, there)

    sent, received = run(deleted())

    assert isinstance(sent, int)
    assert isinstance(received, int)
    assert sent >= received >= model.manifest.nbytes
    left = needs(store, model)  # those that were whole and said to be stored before
    assert all(need.offset == 0 for need in left)
    assert run(transfer(store, model, *link_pair()))
    assert is_complete(store, model)


def test_full_disk_is_told_to_the_sender(model, store, monkeypatch):
    def full(_path: Path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(part, "open_to_append", full)
    at_sender, at_receiver = run(transfer(store, model, *link_pair()))

    assert isinstance(at_receiver, DiskFullError)
    assert isinstance(at_sender, RemoteError)
    assert at_sender.data["kind"] == "disk_full"
    assert "disk became full" in str(at_sender)


def test_disk_that_fails_at_the_last_step_is_told_to_the_sender(model, store, monkeypatch):
    def failing(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(part, "flush_data", failing)
    at_sender, at_receiver = run(transfer(store, model, *link_pair()))

    assert isinstance(at_receiver, StoreError)
    assert "the disk does not work" in str(at_receiver)
    assert isinstance(at_sender, RemoteError)
    assert at_sender.data["kind"] == "store"
    assert not any(store.has(digest) for digest in model.sources)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Chunk(digest=OTHER, offset=0, total=4), b"1234"),
        (Chunk(digest="FIRST", offset=0, total=1 << 40), b"1234"),
        (Chunk(digest="FIRST", offset=4, total=8192), b"1234"),
        (Chunk(digest="FIRST", offset=0, total=8192), b"x" * 8193),
        (Chunk(digest="FIRST", offset=0, total=8192), b""),
        (Stored(digest=OTHER), b""),
        (Ping(), b""),
    ],
)
def test_receiver_takes_only_what_was_asked_for(model, store, message, payload):
    first = next(digest for digest, size in expected_of(model).items() if size == 8192)
    if isinstance(message, Chunk) and message.digest == "FIRST":
        message = Chunk(digest=first, offset=message.offset, total=message.total)

    async def misled() -> None:
        here, there = link_pair()
        await here.send(message, payload)
        await receive_tensors(there, store, {first: 8192})

    with pytest.raises(RemoteProtocolError):
        run(misled())
    assert store.nbytes == 0


def test_receiver_does_not_wait_for_ever_for_a_peer_that_sends_nothing(model, store):
    digest, size = next(iter(expected_of(model).items()))

    async def stuck() -> None:
        here, there = link_pair()
        await here.send(Chunk(digest=digest, offset=0, total=size), b"1234")
        await receive_tensors(there, store, {digest: size}, chunk_timeout_s=0.01)

    with pytest.raises(PeerTimeoutError, match="No weights arrived"):
        run(stuck())
    assert store.offset(digest) == 4


def test_receiver_does_not_wait_for_ever_for_its_answer_to_be_taken(model, store):
    small = [d for d, size in expected_of(model).items() if size < 1000][:3]

    async def stuck() -> None:
        here, there = link_pair(capacity=1)
        expected = {digest: model.sources[digest].nbytes for digest in small}
        task = asyncio.create_task(
            receive_tensors(
                there,
                store,
                {**expected, Digest(OTHER): 4},
                send_timeout_s=0.01,
                chunk_timeout_s=0.1,
            )
        )
        for digest in small:
            data = bytes_of(model, digest)
            await here.send(Chunk(digest=digest, offset=0, total=len(data)), data)
        await task

    with pytest.raises(PeerTimeoutError):
        run(stuck())
    assert all(store.has(digest) for digest in small)
