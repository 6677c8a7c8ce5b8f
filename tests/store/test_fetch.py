import asyncio
import errno
import threading
from collections.abc import Coroutine
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_links import MemoryLink, link_pair
from model_folders import make_folder

from potluck.errors import (
    BrokenModelError,
    DiskFullError,
    IntegrityError,
    PeerLostError,
    PeerTimeoutError,
    RemoteError,
    RemoteProtocolError,
    StoreError,
)
from potluck.ids import Digest
from potluck.model.manifest import make_manifest
from potluck.store import part, receiver, sender
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.progress import TransferProgress
from potluck.store.registry import LocalModel, open_model
from potluck.wire.messages import Chunk, Error, Message, NeedTensor, Ping, Rejected, Stored

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, within a time that only a fault can exceed."""

    async def limited() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(limited())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LocalModel:
    folder = tmp_path_factory.mktemp("fetch")
    return open_model(make_folder(folder / "model"), cache_dir=folder / "cache")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(sender, "CHUNK_SIZE", 1000)


@pytest.fixture
def store(tmp_path):
    with ChunkStore(tmp_path / "weights") as store:
        yield store


@pytest.fixture(scope="module")
def few(model) -> LocalModel:
    """A few of its tensors, large and small."""
    entries = model.manifest.stage(
        [f"model.layers.0.{name}.weight" for name in ("mlp.up_proj", "input_layernorm")]
        + ["model.norm.weight", "lm_head.weight"]
    )
    return replace(
        model,
        manifest=make_manifest(model.manifest.config, entries),
        sources={entry.digest: model.sources[entry.digest] for entry in entries},
    )


def expected_of(model: LocalModel) -> dict[Digest, int]:
    return {entry.digest: entry.nbytes for entry in model.manifest.tensors}


def needs(store: ChunkStore, model: LocalModel) -> list[NeedTensor]:
    missing = store.missing(expected_of(model).items())
    return [NeedTensor(digest=one.digest, offset=one.offset) for one in missing]


def lacking(store: ChunkStore, model: LocalModel) -> int:
    """Bytes that are not in the store."""
    return sum(one.nbytes - one.offset for one in store.missing(expected_of(model).items()))


def is_complete(store: ChunkStore, model: LocalModel) -> bool:
    return all(
        store.path(digest).read_bytes() == _bytes_of(model, digest) for digest in model.sources
    )


def _bytes_of(model: LocalModel, digest: Digest) -> bytes:
    source = model.sources[digest]
    return source.path.read_bytes()[source.offset :][: source.nbytes]


async def transfer(
    store: ChunkStore, model: LocalModel, here: MemoryLink, there: MemoryLink
) -> list[Any]:
    """Both ends; the bytes sent and received, or the errors of each."""
    results = await asyncio.gather(
        send_tensors(here, needs(store, model), model.sources),
        receive_tensors(there, store, expected_of(model)),
        return_exceptions=True,
    )
    return list(results)


# --- the way it should go


def test_model_arrives_whole_and_second_start_sends_nothing(model, store):
    async def first_and_second() -> list[int]:
        sent = await transfer(store, model, *link_pair())
        ends = link_pair()
        for end in ends:
            await end.cut()  # nothing at all is said
        return [*sent, *await transfer(store, model, *ends)]

    assert run(first_and_second()) == [model.manifest.nbytes] * 2 + [0, 0]

    assert is_complete(store, model)
    assert store.nbytes == model.manifest.nbytes


def test_many_workers_are_served_at_once(model, tmp_path):
    async def three() -> list[list[int]]:
        return await asyncio.gather(*(transfer(one, model, *link_pair()) for one in stores))

    stores = [ChunkStore(tmp_path / str(number)) for number in range(3)]
    results = run(three())

    assert results == [[model.manifest.nbytes] * 2] * 3
    for one in stores:
        assert is_complete(one, model)
        one.close()


def test_both_ends_tell_how_far_they_are(model, store):
    told: dict[str, list[TransferProgress]] = {"send": [], "receive": []}
    seconds = count(0.0, 0.5)

    async def watched() -> None:
        here, there = link_pair()
        await asyncio.gather(
            send_tensors(
                here,
                needs(store, model),
                model.sources,
                progress=told["send"].append,
                clock=lambda: next(seconds),
            ),
            receive_tensors(there, store, expected_of(model), progress=told["receive"].append),
        )

    run(watched())

    for steps in told.values():
        amounts = [step.sent for step in steps]
        assert amounts == sorted(amounts)
        assert (amounts[-1], steps[-1].total) == (model.manifest.nbytes, model.manifest.nbytes)
        assert steps[-1].eta_s == 0
    assert all(step.bytes_per_s <= 2000 for step in told["send"])


def test_no_answer_is_waited_for_before_the_next_tensor_is_sent(model, store, monkeypatch):
    monkeypatch.setattr(sender, "WINDOW_TENSORS", 4)

    async def unanswered() -> list[Message]:
        here, there = link_pair(capacity=1000)
        with pytest.raises(PeerTimeoutError, match="does not say that it stored"):
            await send_tensors(here, needs(store, model), model.sources, answer_timeout_s=0.01)
        del there
        return here.sent

    sent = {message.digest for message in run(unanswered()) if isinstance(message, Chunk)}

    assert len(sent) == 4


def test_bytes_without_an_answer_are_bounded_too(model, store, monkeypatch):
    monkeypatch.setattr(sender, "WINDOW_BYTES", 10_000)

    async def unanswered() -> list[Message]:
        here, there = link_pair(capacity=1000)
        with pytest.raises(PeerTimeoutError):
            await send_tensors(here, needs(store, model), model.sources, answer_timeout_s=0.01)
        del there
        return here.sent

    chunks = [message for message in run(unanswered()) if isinstance(message, Chunk)]
    sizes = {chunk.digest: chunk.total for chunk in chunks}
    *before, _last = sizes.values()

    assert sum(before) < 10_000 <= sum(sizes.values())


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


def test_tensor_that_came_from_elsewhere_meanwhile_is_not_sent_to_its_end(
    model, store, monkeypatch
):
    monkeypatch.setattr(sender, "CHUNK_SIZE", 100)
    big = max(model.sources, key=lambda digest: model.sources[digest].nbytes)

    def elsewhere(message: Message, payload: bytes) -> bytes:
        if isinstance(message, Chunk) and message.digest == big and not store.has(big):
            store.write(big, 0, message.total, _bytes_of(model, big))
        return payload

    async def both() -> list[int]:
        here, there = link_pair(capacity=1)
        here.tamper = elsewhere
        return await transfer(store, model, here, there)

    sent, received = run(both())

    assert sent == received < model.manifest.nbytes
    assert is_complete(store, model)


# --- interruptions


@settings(deadline=None, max_examples=25)
@given(
    size=st.sampled_from([700, 1000, 5000]),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    is_here=st.booleans(),
)
def test_interruption_at_any_chunk_resumes_without_sending_anything_twice(
    few, tmp_path_factory, size, cuts, is_here
):
    async def interrupted(store: ChunkStore, after: int) -> list[Any]:
        here, there = link_pair()
        left = iter(range(after))

        def cutting(_: Message, payload: bytes) -> bytes:
            if next(left, None) is None:
                tasks.append(asyncio.create_task(here.cut()))
            return payload

        tasks: list[asyncio.Task[None]] = []
        (here if is_here else there).tamper = cutting
        return await transfer(store, few, here, there)

    root = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sender, "CHUNK_SIZE", size)
        for after in cuts:
            with ChunkStore(root) as store:
                before = lacking(store, few)
                for result in run(interrupted(store, after)):
                    assert isinstance(result, PeerLostError | int)
                assert lacking(store, few) <= before

        with ChunkStore(root) as store:
            left = lacking(store, few)
            assert run(transfer(store, few, *link_pair())) == [left, left]
            assert is_complete(store, few)


def test_what_arrived_before_the_connection_ended_is_on_disk(model, store):
    async def cut_after(chunks: int) -> int:
        here, there = link_pair(capacity=100)
        left, reached = iter(range(chunks)), asyncio.Event()

        def counting(_: Message, payload: bytes) -> bytes:
            if next(left, None) is None:
                reached.set()
            return payload

        here.tamper = counting
        sending = asyncio.create_task(send_tensors(here, needs(store, model), model.sources))
        await reached.wait()
        await here.cut()
        with pytest.raises(PeerLostError):
            await receive_tensors(there, store, expected_of(model))
        with pytest.raises(PeerLostError):
            await sending
        return here.sent_bytes

    sent = run(cut_after(7))

    assert 0 < sent < model.manifest.nbytes
    assert lacking(store, model) == model.manifest.nbytes - sent


def test_peer_that_is_lost_after_everything_was_stored_is_no_error(model, store):
    async def deaf_sender() -> int:
        here, there = link_pair(capacity=1000)
        for digest in model.sources:
            data = _bytes_of(model, digest)
            await here.send(Chunk(digest=digest, offset=0, total=len(data)), data)
        await here.cut()
        return await receive_tensors(there, store, expected_of(model))

    assert run(deaf_sender()) == model.manifest.nbytes
    assert is_complete(store, model)


# --- bytes that are not what they should be


class Altering:
    """Changes a byte of a tensor, this many times."""

    def __init__(self, digest: Digest, times: int) -> None:
        self.digest, self.times = digest, times

    def __call__(self, message: Message, payload: bytes) -> bytes:
        if isinstance(message, Chunk) and message.digest == self.digest and self.times:
            self.times -= 1
            return bytes([payload[0] ^ 1]) + payload[1:]
        return payload


def test_altered_tensor_is_sent_once_more_from_the_beginning(model, store):
    digest = next(iter(model.sources))

    async def both() -> tuple[list[int], list[Message]]:
        here, there = link_pair()
        here.tamper = Altering(digest, times=1)
        return await transfer(store, model, here, there), there.sent

    (sent, received), answers = run(both())

    assert sent == received == model.manifest.nbytes + model.sources[digest].nbytes
    assert [a.digest for a in answers if isinstance(a, Rejected)] == [digest]
    assert is_complete(store, model)


def test_tensor_altered_twice_ends_the_transfer_at_both_ends(model, store):
    digest = min(model.sources, key=lambda digest: model.sources[digest].nbytes)

    async def both() -> list[object]:
        here, there = link_pair()
        here.tamper = Altering(digest, times=2)
        return await transfer(store, model, here, there)

    at_sender, at_receiver = run(both())

    assert isinstance(at_sender, IntegrityError)
    assert "altered twice" in str(at_sender)
    assert isinstance(at_receiver, IntegrityError)
    assert not store.has(digest)


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
    assert "Input/output error" in str(at_receiver)
    assert isinstance(at_sender, RemoteError)
    assert at_sender.data["kind"] == "store"
    assert not any(store.has(digest) for digest in model.sources)


@pytest.mark.parametrize("damage", ["cut off", "gone"])
def test_model_file_that_is_damaged_meanwhile_is_named(tmp_path, store, damage):
    folder = make_folder(tmp_path / "model")
    model = open_model(folder, cache_dir=tmp_path / "cache")
    file = folder / "model.safetensors"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4])

    async def send() -> None:
        here, _there = link_pair(capacity=1000)
        await send_tensors(here, needs(store, model), model.sources)

    with pytest.raises(BrokenModelError, match=r"model\.safetensors"):
        run(send())


def test_model_file_that_changed_since_it_was_opened_is_never_stored(tmp_path, store):
    folder = make_folder(tmp_path / "model")
    model = open_model(folder, cache_dir=tmp_path / "cache")
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    at_sender, _ = run(transfer(store, model, *link_pair()))

    assert isinstance(at_sender, IntegrityError)
    assert len(needs(store, model)) >= 1


# --- peers that do what they should not

OTHER = "ab" * 32


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


@pytest.mark.parametrize(
    "need",
    [NeedTensor(digest=OTHER, offset=0), NeedTensor(digest="FIRST", offset=8193)],
)
def test_sender_gives_only_what_it_offers(model, need):
    first = next(digest for digest, size in expected_of(model).items() if size == 8192)
    if need.digest == "FIRST":
        need = NeedTensor(digest=first, offset=need.offset)

    async def asked() -> list[Message]:
        here, _there = link_pair()
        with pytest.raises(RemoteProtocolError, match="asks for tensor"):
            await send_tensors(here, [need], model.sources)
        return here.sent

    assert run(asked()) == []


@pytest.mark.parametrize(
    "answer",
    [
        Stored(digest=OTHER),
        Rejected(digest=OTHER, kind="integrity", message=""),
        Chunk(digest=OTHER, offset=0, total=1),
    ],
)
def test_sender_refuses_answers_to_what_it_did_not_send(model, store, answer):
    async def misled() -> None:
        here, there = link_pair(capacity=1000)
        await there.send(answer)
        await send_tensors(here, needs(store, model), model.sources)

    with pytest.raises(RemoteProtocolError):
        run(misled())


def test_error_of_the_other_end_is_passed_on(model, store):
    error = Error(kind="busy", message="Lent to Anna.")

    async def at_both() -> tuple[Any, Any]:
        here, there = link_pair(capacity=1000)
        await there.send(error)
        other, one = link_pair()
        await other.send(error)
        return await asyncio.gather(
            send_tensors(here, needs(store, model), model.sources),
            receive_tensors(one, store, expected_of(model)),
            return_exceptions=True,
        )

    for result in run(at_both()):
        assert isinstance(result, RemoteError)
        assert (str(result), result.data["kind"]) == ("Lent to Anna.", "busy")


# --- deadlines


def test_sender_does_not_wait_for_ever_for_a_peer_that_takes_nothing(model, store):
    async def stuck() -> None:
        here, _there = link_pair(capacity=1)
        await send_tensors(here, needs(store, model), model.sources, send_timeout_s=0.01)

    with pytest.raises(PeerTimeoutError, match="takes no more weights"):
        run(stuck())


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
            data = _bytes_of(model, digest)
            await here.send(Chunk(digest=digest, offset=0, total=len(data)), data)
        await task

    with pytest.raises(PeerTimeoutError):
        run(stuck())
    assert all(store.has(digest) for digest in small)
