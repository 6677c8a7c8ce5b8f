import asyncio
from dataclasses import replace

import pytest
from memory_links import link_pair
from model_folders import make_folder
from transfers import SMALL_CHUNKS, expected_of, needs, run

from potluck.errors import (
    BrokenModelError,
    PeerTimeoutError,
    RemoteProtocolError,
)
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.registry import open_model
from potluck.store.sender import SendLimits
from potluck.store.throttle import Throttle
from potluck.wire.messages import Chunk, Message, NeedTensor, Rejected, Stored

OTHER = "ab" * 32


def test_no_answer_is_waited_for_before_the_next_tensor_is_sent(model, store):
    limits = replace(SMALL_CHUNKS, window_tensors=4, answer_s=0.01)

    async def unanswered() -> list[Message]:
        here, there = link_pair(capacity=1000)
        with pytest.raises(PeerTimeoutError, match="does not say that it stored"):
            await send_tensors(here, needs(store, model), model.sources, limits=limits)
        del there
        return here.sent

    sent = {message.digest for message in run(unanswered()) if isinstance(message, Chunk)}

    assert len(sent) == 4


def test_bytes_without_an_answer_are_bounded_too(model, store):
    limits = replace(SMALL_CHUNKS, window_bytes=10_000, answer_s=0.01)

    async def unanswered() -> list[Message]:
        here, there = link_pair(capacity=1000)
        with pytest.raises(PeerTimeoutError):
            await send_tensors(here, needs(store, model), model.sources, limits=limits)
        del there
        return here.sent

    chunks = [message for message in run(unanswered()) if isinstance(message, Chunk)]
    sizes = {chunk.digest: chunk.total for chunk in chunks}
    *before, _last = sizes.values()

    assert sum(before) < 10_000 <= sum(sizes.values())


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


def test_rest_of_a_tensor_that_the_peer_has_from_elsewhere_is_not_sent(model):
    limits = SendLimits(chunk_bytes=100)
    digest = next(one for one, size in expected_of(model).items() if size == 8192)

    async def answered_early() -> int:
        here, there = link_pair(capacity=1)
        need = NeedTensor(digest=digest, offset=0)
        sending = asyncio.create_task(send_tensors(here, [need], model.sources, limits=limits))
        await there.receive()
        await there.send(Stored(digest=digest))
        while not sending.done():
            await asyncio.wait(
                {sending, asyncio.create_task(there.receive())}, return_when="FIRST_COMPLETED"
            )
        await here.cut()
        return await sending

    assert run(answered_early()) <= 1000


def test_sender_does_not_wait_for_ever_for_a_peer_that_takes_nothing(model, store):
    async def stuck() -> None:
        here, _there = link_pair(capacity=1)
        await send_tensors(here, needs(store, model), model.sources, limits=SendLimits(send_s=0.01))

    with pytest.raises(PeerTimeoutError, match="takes no more weights"):
        run(stuck())


def test_limit_of_bandwidth_is_kept(model, store):
    """The receiver stores at once, so only the limit takes time."""

    class Counting(Throttle):
        async def take(self, nbytes: int) -> None:
            taken.append(nbytes)

    taken: list[int] = []
    throttle = Counting(0.5)

    async def both() -> None:
        here, there = link_pair()
        await asyncio.gather(
            send_tensors(here, needs(store, model), model.sources, throttle=throttle),
            receive_tensors(there, store, expected_of(model)),
        )

    run(both())

    assert sum(taken) == model.manifest.nbytes
    assert max(taken) <= throttle.chunk(2 << 20) == 16 << 10
