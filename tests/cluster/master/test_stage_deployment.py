"""A stage on its way to one computer, where the packed bytes do not behave."""

import pytest
from fake_cluster import FakeComputer, failing, run
from packing_engine import Workplace

from potluck.cluster.master.sources import Sources
from potluck.cluster.master.stage_deployment import Retries, StageDeployment, StageProgress
from potluck.cluster.master.stage_tensors import StageTensors
from potluck.errors import (
    EngineError,
    IntegrityError,
    PeerLostError,
    RemoteError,
    RemoteProtocolError,
)
from potluck.ids import Digest, NodeId
from potluck.plan.stages import StagePlan
from potluck.store.registry import LocalModel
from potluck.wire.messages import Assign, Need, NeedTensor

DESK = NodeId("dd" * 32)


def task_for(member: FakeComputer, model: LocalModel, workplace: Workplace) -> StageDeployment:
    """Layer 1, in 4 bits."""
    stage = StagePlan(
        node=member.node_id, name=member.name, device="cpu:0", layers=range(1, 2), embedding=False,
        head=False, predicted_ms=1.0, head_ms=0.0, prefill_ms=1.0, memory=1,
    )  # fmt: skip
    assign = Assign(
        epoch=1, model_id=model.manifest.model_id, config=dict(model.manifest.config),
        scheme="int4", layers=(1, 2), embedding=False, head=False, context=64, tensors=(),
    )  # fmt: skip
    expected = model.config.stage_tensors(range(1, 2), embedding=False, head=False)
    return StageDeployment(
        stage=stage,
        computer=member,
        assign=assign,
        tensors=StageTensors(model, "int4", expected, workplace.packing),
        progress=StageProgress(node_id=member.node_id, name=member.name),
        changed=lambda: None,
        retries=Retries(pause_s=0.0),
    )


async def packed(member: FakeComputer, model: LocalModel, workplace: Workplace) -> StageDeployment:
    task = task_for(member, model, workplace)
    await task.prepare(is_packed_first=True)
    await task.pack(None)
    return task


def lose_one(task: StageDeployment, workplace: Workplace) -> None:
    """The disk lost a packed file, and the next one will be of other bytes."""
    info, *_ = (i for i in task.tensors.infos(is_local=False) if i.dtype == "PACKED4_SUPER")
    workplace.store.discard(Digest(info.digest))
    workplace.engine.salt += b"!"


def test_bytes_that_changed_are_assigned_anew_before_anything_is_sent(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        laptop = FakeComputer("Laptop", 1)
        task = await packed(laptop, model, workplace)
        lose_one(task, workplace)

        assert await task.give(lambda: None) == 5000
        assert laptop.calls == ["assign", "assign", "send_weights"]
        assert laptop.assigned[0] != laptop.assigned[1]

    run(main())


def test_bytes_that_change_every_time_are_an_error(model: LocalModel, workplace: Workplace) -> None:
    async def main() -> None:
        task: StageDeployment

        class Forgetful(FakeComputer):
            async def assign(self, assign: Assign) -> Need:
                lose_one(task, workplace)
                return await super().assign(assign)

        laptop = Forgetful("Laptop", 1)
        task = await packed(laptop, model, workplace)
        with pytest.raises(EngineError, match=r"Laptop were packed 5 times.*Restart Potluck"):
            await task.give(lambda: None)
        assert laptop.calls == ["assign"] * Retries().attempts

    run(main())


def test_a_file_that_is_damaged_every_time_is_an_error(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        laptop = FakeComputer("Laptop", 1)
        task = await packed(laptop, model, workplace)
        info, *_ = (i for i in task.tensors.infos(is_local=False) if i.dtype == "PACKED4_SUPER")
        altered = IntegrityError("altered", digest=info.digest)
        laptop.errors["send_weights"] = failing(altered, Retries().attempts)

        with pytest.raises(IntegrityError):
            await task.give(lambda: None)
        assert workplace.engine.packed[info.name] == Retries().attempts

    run(main())


def test_a_computer_may_ask_for_its_own_tensors_alone(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        class Curious(FakeComputer):
            async def assign(self, assign: Assign) -> Need:
                need = NeedTensor(digest="ab" * 32, offset=0)
                return Need(epoch=assign.epoch, tensors=(need,), activation_port=1)

        task = await packed(Curious("Laptop", 1), model, workplace)
        with pytest.raises(RemoteProtocolError, match="not assigned"):
            await task.give(lambda: None)

    run(main())


def test_what_was_sent_before_a_link_broke_is_counted(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        laptop = FakeComputer("Laptop", 1)
        laptop.errors["send_weights"] = failing(PeerLostError("broke"), 2)
        task = await packed(laptop, model, workplace)
        begun: list[str] = []
        await task.give(lambda: begun.append("sending"))

        assert len(begun) == 3
        wanted = sum(info.nbytes for info in task.assign.tensors)
        assert task.progress.sent == task.progress.total == wanted

    run(main())


# --- weights from other workers


def from_workers(
    laptop: FakeComputer, mac: FakeComputer, model: LocalModel, workplace: Workplace
) -> StageDeployment:
    """A stage of the laptop, whose tensors the Mac had in another plan; its link is the faster."""
    task = task_for(laptop, model, workplace)
    task.sources = Sources(
        local=DESK,
        link_rate=lambda source, target: 1e6 if source == DESK else 1e9,
        present=lambda: (laptop.node_id, mac.node_id),
    )
    task.workers = {mac.node_id: mac}
    return task


async def move(task: StageDeployment, mac: FakeComputer) -> None:
    await task.prepare(is_packed_first=True)
    await task.pack(None)
    infos = task.tensors.infos(is_local=False)
    assert task.sources is not None
    task.sources.stored(mac.node_id, (Digest(info.digest) for info in infos))
    await task.give(lambda: None)


def test_a_worker_gets_from_another_one_what_that_has(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        laptop, mac = FakeComputer("Laptop", 1), FakeComputer("Mac", 2)
        task = from_workers(laptop, mac, model, workplace)
        await move(task, mac)

        assert laptop.calls == ["assign", "expect", "assign"]
        assert mac.calls == ["pass_on"]
        wanted = {info.digest: info.nbytes for info in task.assign.tensors}
        assert set(laptop.expected[mac.node_id]) == laptop.passed == set(wanted)
        assert task.progress.sent == task.progress.total == sum(wanted.values())

    run(main())


@pytest.mark.parametrize("refuses", ["expect", "pass_on"])
def test_what_a_worker_does_not_send_comes_from_the_master(
    model: LocalModel, workplace: Workplace, refuses: str
) -> None:
    async def main() -> None:
        laptop, mac = FakeComputer("Laptop", 1), FakeComputer("Mac", 2)
        refusing = laptop if refuses == "expect" else mac
        refusing.errors[refuses] = failing(RemoteError("no"))
        await move(from_workers(laptop, mac, model, workplace), mac)

        assert laptop.calls == ["assign", "expect", "assign", "send_weights"]

    run(main())


def test_a_worker_that_lost_its_tensors_is_not_asked_again(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        class Forgetful(FakeComputer):
            async def pass_on(self, target: object, tensors: object, *, timeout_s: float) -> int:
                return 0

        laptop, mac = FakeComputer("Laptop", 1), Forgetful("Mac", 2)
        task = from_workers(laptop, mac, model, workplace)
        await move(task, mac)

        assert laptop.calls == ["assign", "expect", "assign", "send_weights"]
        assert task.sources is not None
        assert list(task.sources.share_out(laptop.node_id, (), {})) == [DESK]

    run(main())
