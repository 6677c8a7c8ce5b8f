"""What a worker remembers of the tensors that masters name: no more than a bound."""

from pathlib import Path

import pytest
from chunk_stores import DATA, digest_of, fill, make_store

from potluck.cluster.worker import weights
from potluck.cluster.worker.contents import Content
from potluck.cluster.worker.lease import Lease
from potluck.cluster.worker.weights import PeerWeights
from potluck.errors import NotAllowedError
from potluck.ids import Digest, HomeId, NodeId
from potluck.wire.messages import NeedTensor, TensorInfo
from potluck.wire.passing_messages import Expect

HOME = HomeId("aa" * 32)


def whole(digest: Digest) -> dict[Digest, Content]:
    return {digest: Content(TensorInfo(name="x", dtype="F32", shape=(1,), digest=digest, nbytes=4))}


def test_tensors_that_never_came_are_forgotten_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MOST_ASSIGNED", 5)
    with make_store(tmp_path) as store:
        (here,) = fill(store, DATA)
        peers = PeerWeights(store)
        peers.assigned(HOME, whole(here))
        for number in range(100):
            peers.assigned(HOME, whole(digest_of(b"%d" % number)))

        assert len(peers._assigned[HOME]) <= 6
        assert list(peers.sources(HOME, [NeedTensor(digest=here, offset=0)])) == [here]


def test_weights_are_expected_of_a_bounded_number_of_workers(tmp_path: Path) -> None:
    lease = Lease(home=HOME, master=NodeId("bb" * 32), master_name="Desk", epoch=1, link=None)
    with make_store(tmp_path) as store:
        peers = PeerWeights(store)
        for number in range(weights.MOST_SENDERS):
            peers.expect(HOME, Expect(epoch=1, node_id=f"{number:064x}", tensors=()), lease)
        with pytest.raises(NotAllowedError, match="too many others"):
            peers.expect(HOME, Expect(epoch=1, node_id="f" * 64, tensors=()), lease)
