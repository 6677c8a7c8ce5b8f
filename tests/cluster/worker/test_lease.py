from typing import Any, cast

import pytest

from potluck.cluster.worker.lease import Lease, LeasedStage
from potluck.ids import Digest, HomeId, NodeId
from potluck.store.chunks import Missing
from potluck.wire.messages import Assign, DeviceId

GPU, CPU = DeviceId(kind="cuda"), DeviceId(kind="cpu")
A, B, C = (Digest(letter * 64) for letter in "abc")


def stage(start: int, stop: int, **missing: int) -> LeasedStage:
    """Layers, and what they lack: digests by their first letter."""
    assign = Assign(
        epoch=1,
        model_id="0" * 64,
        config={},
        scheme="f32",
        layers=(start, stop),
        embedding=False,
        head=False,
        context=8,
        tensors=(),
        model="Qwen3 8B",
    )
    lacking = [
        Missing(digest=Digest(letter * 64), nbytes=nbytes, offset=0)
        for letter, nbytes in missing.items()
    ]
    return LeasedStage(
        handle=cast("Any", None), assign=assign, tensors={}, missing=lacking, layer_count=36
    )


@pytest.fixture
def lease() -> Lease:
    """The GPU has the end of the model, the processor its beginning."""
    return Lease(
        home=HomeId("0" * 64),
        master=NodeId("1" * 64),
        master_name="Desk",
        epoch=1,
        link=cast("Any", None),
        stages={GPU: stage(4, 8, a=10), CPU: stage(0, 4, b=20, c=30)},
    )


def test_its_layers_are_those_of_all_devices(lease: Lease) -> None:
    assert lease.layers == (0, 8)


def test_its_owner_is_told_of_which_model_they_are(lease: Lease) -> None:
    assert lease.model == ("Qwen3 8B", 36)


def test_what_is_awaited_is_what_any_device_lacks(lease: Lease) -> None:
    assert lease.awaited() == {A: 10, B: 20, C: 30}
    assert lease.awaited(besides=CPU) == {A: 10}
    assert lease.awaits_weights
    lease.stages[CPU].missing = ()
    assert lease.awaits_weights
    lease.stages[GPU].missing = ()
    assert not lease.awaits_weights


def test_it_is_loaded_when_every_device_is(lease: Lease) -> None:
    assert (lease.progress, lease.is_loaded) == (0.0, False)
    lease.stages[GPU].progress = 0.5
    assert lease.progress == 0.25
    lease.stages[GPU].is_loaded = True
    assert (lease.progress, lease.is_loaded) == (0.5, False)
    lease.stages[CPU].is_loaded = True
    assert (lease.progress, lease.is_loaded) == (1.0, True)
    assert not lease.awaits_weights  # whatever was to be sent, it is there
