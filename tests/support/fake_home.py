"""A master, and the fake computers of its home."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from fake_cluster import FakeComputer, FakeComputers, failing
from model_folders import CONFIG

from potluck.api.values.schema import PlanRequest
from potluck.cluster.device_names import place_name
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.events import ComputerLost, Events, ModelChanged, Notice, StageLost
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models
from potluck.cluster.master.packing import Packing
from potluck.errors import PeerLostError
from potluck.model.config import ModelConfig
from potluck.model.footprint import working_bytes
from potluck.store.registry import LocalModel
from potluck.wire.messages import DeviceId, DeviceInfo

SPLIT = PlanRequest(layers=(("Desk", 2), ("Laptop", 2)), context=64)
TINY = PlanRequest(shape="tiny", context=64)


class Home:
    """A master with two computers, a desk and a laptop."""

    def __init__(
        self,
        model: LocalModel,
        packing: Packing | None = None,
        deadlines: PlanningDeadlines = DEADLINES,
        resolve: Callable[[str | None], Path] = lambda query: Path(query or "guide"),
    ) -> None:
        self.model = model
        self.desk, self.laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        self.desk.stores_weights = True
        self.computers = FakeComputers(self.desk, self.laptop)
        self.changes = 0
        self.notices: list[str] = []
        self.use = DeviceUse()
        self.events = Events()
        self.events.on(ModelChanged, lambda _: self._changed())
        self.events.on(Notice, lambda notice: self.notices.append(notice.text))
        self.opened: list[Path] = []
        self.open_error: BaseException | None = None
        self.models = Models(
            resolve=resolve,
            read=self._open,
            shapes={"tiny": {**CONFIG, "num_hidden_layers": 4}},
        )
        self.master = Master(
            computers=self.computers,
            models=self.models,
            events=self.events,
            packing=packing,
            use=self.use,
            deadlines=deadlines,
        )
        self.states: list[tuple[str | None, str]] = []

    async def _open(self, folder: Path, progress: Callable[[int, int], None]) -> LocalModel:
        self.opened.append(folder)
        progress(1, 2)
        if self.open_error is not None:
            raise self.open_error
        return self.model

    def _changed(self) -> None:
        self.changes += 1
        state = (self.master.state.phase, self.master.state.message)
        if state not in self.states:
            self.states.append(state)

    def lose_laptop(self) -> None:
        self.computers.workers.remove(self.laptop)
        self.laptop.errors["unload"] = failing(PeerLostError("gone"))
        self.lose(self.laptop)

    def lose(self, computer: FakeComputer) -> None:
        lost = ComputerLost(node_id=computer.node_id, name=computer.name, how="stopped answering")
        self.master.lost(lost)

    def lose_stage(self, device: DeviceId) -> None:
        """A stage process of the desk ends."""
        place = place_name("Desk", device, self.desk.devices)
        self.master.lost(
            StageLost(
                node_id=self.desk.node_id,
                place=place,
                how="lost its compute process",
                device=device,
            )
        )

    @property
    def stages(self) -> list[str]:
        deployment = self.master.deployment
        return [] if deployment is None else [s.name for s in deployment.planned.plan.stages]


def small(computer: FakeComputer, memory: int) -> DeviceInfo:
    """Return a device with this memory for weights and caches, beyond a stage's working memory."""
    working = working_bytes(ModelConfig.from_dict(CONFIG), 64)
    return msgspec.structs.replace(computer.devices[0], memory_free=memory + working)
