"""This computer as its own master uses it, with fake stage processes."""

from typing import Any, cast

from fake_engine import DEVICE, OTHER, FakeEngine
from worker_rig import Party

from potluck.cluster.device_use import DeviceUse
from potluck.cluster.membership.local import LocalComputer
from potluck.wire.messages import DeviceId


class StageProcesses:
    """StageProcesses that are always up."""

    devices = (DEVICE, OTHER)

    def __init__(self) -> None:
        self.engine, self.other = FakeEngine(), FakeEngine(OTHER)

    async def look(self) -> None:
        pass

    async def handle(self, device: DeviceId | None = None) -> FakeEngine:
        return {None: self.engine, DEVICE.id: self.engine, OTHER.id: self.other}[device]

    def running(self) -> tuple[FakeEngine, ...]:
        return self.engine, self.other


def own_computer(
    party: Party, processes: StageProcesses, *, use: DeviceUse | None = None
) -> LocalComputer:
    return LocalComputer(
        identity=party.identity,
        me=party.me,
        processes=cast("Any", processes),
        addresses=lambda: party.addresses,
        use=use,
    )
