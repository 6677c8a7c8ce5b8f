import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_links import link_pair
from model_folders import make_folder
from transfers import (
    SMALL_CHUNKS,
    Altering,
    expected_of,
    is_complete,
    lacking,
    needs,
    run,
    transfer,
)

from potluck.errors import (
    IntegrityError,
    PeerLostError,
    RemoteError,
)
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.progress import TransferProgress
from potluck.store.registry import open_model
from potluck.store.sender import SendLimits
from potluck.wire.messages import Error, Message, Rejected


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
                limits=SMALL_CHUNKS,
            ),
            receive_tensors(there, store, expected_of(model), progress=told["receive"].append),
        )

    run(watched())

    for steps in told.values():
        amounts = [step.sent for step in steps]
        assert amounts == sorted(amounts)
        assert (amounts[-1], steps[-1].total) == (model.manifest.nbytes, model.manifest.nbytes)
    assert all(step.bytes_per_s <= 2000 for step in told["send"])


@pytest.mark.slow
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
        return await transfer(store, few, here, there, limits)

    root = tmp_path_factory.mktemp("interrupted")
    limits = SendLimits(chunk_bytes=size)
    for after in cuts:
        with ChunkStore(root) as store:
            before = lacking(store, few)
            for result in run(interrupted(store, after)):
                assert isinstance(result, PeerLostError | int)
            assert lacking(store, few) <= before

    with ChunkStore(root) as store:
        left = lacking(store, few)
        assert run(transfer(store, few, *link_pair(), limits)) == [left, left]
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
        sending = asyncio.create_task(
            send_tensors(here, needs(store, model), model.sources, limits=SMALL_CHUNKS)
        )
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


def test_error_of_the_other_end_is_passed_on(model, store):
    error = Error(kind="busy", message="Lent to Anna.")

    async def at_both() -> tuple[Any, Any]:
        here, there = link_pair(capacity=1000)
        await there.send(error)
        other, one = link_pair()
        await other.send(error)
        return await asyncio.gather(
            send_tensors(here, needs(store, model), model.sources, limits=SMALL_CHUNKS),
            receive_tensors(one, store, expected_of(model)),
            return_exceptions=True,
        )

    for result in run(at_both()):
        assert isinstance(result, RemoteError)
        assert (str(result), result.data["kind"]) == ("Lent to Anna.", "busy")
