"""The home: a master and three workers, paired, with a model loaded that none of them could hold."""

from collections.abc import Sequence
from pathlib import Path

from faults.host import Host, NodeClient, eventually
from faults.lan import Lan
from faults.models import CONTEXT, Model, model
from potluck.api.values.schema import ClusterState, LoadProgress, PlanRequest, StageView
from potluck.errors import PotluckError
from potluck.model.schemes import Scheme

MASTER = "master"
WORKERS = ("desktop", "laptop", "attic")
READY_S = 60.0


class Cluster:
    """Four computers of one home. `close` ends and removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lan = Lan([MASTER, *WORKERS])
        self.hosts = {
            name: Host(name, folder / name, namespace)
            for name, namespace in self.lan.namespaces.items()
        }
        self._model: Model | None = None
        try:
            self._pair()
        except BaseException:
            self.close()
            raise

    def _pair(self) -> None:
        for name in self.hosts:
            self.hosts[name].start(worker=name != MASTER)
        for worker in self.workers:
            worker.client().join(self.client.invite().token)
        self.wait_until_ready()

    @property
    def master(self) -> Host:
        return self.hosts[MASTER]

    @property
    def workers(self) -> list[Host]:
        return [self.hosts[name] for name in WORKERS]

    @property
    def client(self) -> NodeClient:
        return self.master.client()

    # --- what the master says

    def missing(self) -> list[str]:
        """Return the computers that the master cannot use now."""
        try:
            state = self.client.state()
        except PotluckError:
            return [MASTER]
        there = {computer.name for computer in state.computers if _is_usable(computer.state)}
        devices = {computer.name for computer in state.computers if computer.devices}
        up = {name for name, host in self.hosts.items() if host.stage_processes()}
        return sorted(set(self.hosts) - (there & devices & up))

    def wait_until_ready(self, seconds: float = READY_S) -> None:
        """Wait until every computer can be used.

        Raises:
            TooLateError: some cannot, after so many seconds.
        """
        eventually(lambda: not self.missing(), "all computers are ready", seconds)

    def state(self) -> ClusterState:
        return self.client.state()

    def stages(self) -> Sequence[StageView]:
        """Return the stages of the plan in force."""
        plan = self.state().model.plan
        return plan.stages if plan is not None else ()

    # --- the model

    def choose(self, name: str, scheme: Scheme, computers: int) -> PlanRequest:
        """Let each computer lend so much that the model needs so many. Return what asks for it."""
        chosen = model(name, scheme, self._folder / "models")
        nbytes = chosen.share_bytes(computers)
        for host in self.hosts.values():
            host.lend(nbytes, worker=host is not self.master)
        lends = {device.memory_free for c in self.state().computers for device in c.devices}
        if lends != {nbytes}:
            eventually(lambda: self._all_lend(nbytes), "all lend what they were told", 10.0)
        return PlanRequest(model=str(chosen.folder), scheme=scheme, context=CONTEXT)

    def _all_lend(self, nbytes: int) -> bool:
        computers = self.state().computers
        return all(device.memory_free == nbytes for c in computers for device in c.devices)

    def load(self, request: PlanRequest) -> LoadProgress:
        """Load it. Return the last progress.

        Raises:
            PotluckError: the load failed.
        """
        return list(self.client.load(request))[-1]

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.lan.close()


def _is_usable(state: str) -> bool:
    return state in ("ready", "running")
