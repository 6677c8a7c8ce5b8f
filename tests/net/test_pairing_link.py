"""Pairing messages over real TLS, and what ends them."""

import pytest

from potluck.errors import PairingError, PeerTimeoutError
from potluck.net.transport import PairingLink, dial_pairing
from potluck.wire.frame import encode
from potluck.wire.messages import Unload
from potluck.wire.pairing_messages import PairAccept, PairBegin, PairNonce

pytestmark = pytest.mark.net


def test_certificates_and_nonces_travel_unchanged(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        begin = PairBegin(
            versions=(1,),
            name="Desktop ü",
            certificate=master.identity.certificate_der,
            commitment=bytes(range(32)),
        )
        answer = PairNonce(version=1, name="worker", nonce=bytes(range(32, 64)))
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(begin)
            theirs = await worker.pairings.get()
            assert await theirs.receive(timeout_s=5) == begin
            await theirs.send(answer)
            assert await ours.receive(timeout_s=5) == answer
            ours.close()
            await ours.wait_closed()

    run(main())


def test_silence_ends_at_the_deadline_and_the_link_lives(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            with pytest.raises(PeerTimeoutError, match="has not answered"):
                await ours.receive(timeout_s=0.01)
            await theirs.send(PairAccept())
            assert await ours.receive(timeout_s=5) == PairAccept()
            ours.close()
            await ours.wait_closed()

    run(main())


def test_the_other_sides_end_is_said(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            await theirs.send(PairAccept())
            theirs.close()
            assert await ours.receive(timeout_s=5) == PairAccept()  # said before it ended
            with pytest.raises(PairingError, match="ended the pairing"):
                await ours.receive(timeout_s=5)
            with pytest.raises(PairingError):
                await ours.send(PairAccept())
            await ours.wait_closed()

    run(main())


async def receive_all(link: PairingLink) -> None:
    while True:
        await link.receive(timeout_s=5)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Unload(id=1, epoch=1))[0],
        encode(PairAccept())[0] * 20,
        encode(PairAccept())[0][:-1] + b"\xff",
    ],
    ids=["nonsense", "an ordinary message", "a flood", "a broken message"],
)
def test_what_is_no_pairing_ends_it(house, run, said: bytes) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            ours._stream.write([said])
            with pytest.raises(PairingError):
                await receive_all(theirs)
            await theirs.wait_closed()
            await ours.wait_closed()

    run(main())
