"""A worker survives whatever a master asks: each request is answered, or refused with a reason."""

from pathlib import Path
from random import Random

import msgspec
import pytest
from fake_cluster import run
from fake_engine import assign
from random_messages import random_message
from worker_rig import Rig

from potluck.errors import RemoteError
from potluck.store.registry import LocalModel
from potluck.wire.messages import Assign, Message
from potluck.wire.operations import ANSWERS, known_from

pytestmark = pytest.mark.net

KINDS = [kind for kind in known_from("master", "control").values() if kind in ANSWERS]
EPOCHS = (1, 2, 3)


def random_request(honest: Assign, random: Random) -> Message:
    """A request, often for a plan that is in force; half of the assignments are nearly right."""
    kind = random.choice(KINDS)
    message = random_message(kind, random)
    if isinstance(message, Assign) and random.random() < 0.5:
        field = random.choice(("scheme", "layers", "context", "cache", "embedding", "tensors"))
        message = msgspec.structs.replace(honest, **{field: getattr(message, field)})
    changed = {"epoch": random.choice(EPOCHS)} if hasattr(message, "epoch") else {}
    return msgspec.structs.replace(message, **changed)


def test_a_worker_survives_whatever_its_master_asks(
    tmp_path: Path, model: LocalModel, caplog: pytest.LogCaptureFixture
) -> None:
    honest, random = assign(model), Random(1)
    refused: set[str] = set()

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control()
            for _ in range(400):
                try:
                    await control.link.request(random_request(honest, random), timeout_s=10)
                except RemoteError as error:
                    refused.add(str(error.data["kind"]))
            need = await control.computer.assign(msgspec.structs.replace(honest, epoch=4))
            assert len(need.tensors) == len(honest.tensors)

    run(main())
    assert {"stale_epoch", "not_allowed", "unreachable", "broken_model"} <= refused
    assert "internal" not in refused
    assert not [record for record in caplog.records if record.exc_info]
