"""The faults themselves: what each kind does to the home, and what is repaired afterwards."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faults.cluster import MASTER, Cluster
from faults.host import RESERVE, Host
from faults.scenario import Scenario
from faults.switch import Link
from potluck.api.values.schema import RoleRequest

YEAR_S = 365 * 86_400
SLOW_S = 0.04, 0.01  # a slow process stands still, then runs
USED_LAST = 20  # tensors, fewer than a third of the layers have: the model that is loaded has them


@dataclass(slots=True)
class Scene:
    """A run under way: the home, and what still has to happen to it."""

    cluster: Cluster
    scenario: Scenario
    said: list[str] = field(default_factory=list[str])  # what was done, for people
    paused: list[Host] = field(default_factory=list[Host])
    chosen: Host | None = None  # the first victim, if not a worker that has a stage
    forgotten: bool = False  # the master was started again, and does not know what was loaded
    _due: list[tuple[float, Callable[[], None]]] = field(
        default_factory=list[tuple[float, Callable[[], None]]]
    )

    def victim(self, number: int = 0) -> Host:
        """Return the worker that a fault hits: one that has a stage, if any has."""
        if self.chosen is not None:
            return self.chosen
        names = [s.node for s in self.cluster.stages() if s.node != MASTER]
        names = names or [worker.name for worker in self.cluster.workers]
        share = self.scenario.victims[number]
        return self.cluster.hosts[names[int(share * len(names))]]

    def say(self, what: str) -> None:
        self.said.append(what)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do this so many seconds from now, while answers are followed."""
        self._due.append((time.monotonic() + seconds, do))

    def act(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        due = [do for at, do in self._due if at <= now]
        self._due = [(at, do) for at, do in self._due if at > now]
        for do in due:
            do()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is going to happen by itself."""
        return not self._due

    def repair(self) -> None:
        """Undo whatever was done: thaw, plug in, start, and make room."""
        self._due.clear()
        for host in self.cluster.hosts.values():
            self.cluster.lan.set_link(host.name)
            host.clock.set(0)
            host.free_disk()
            host.revive(worker=host.name != MASTER)
        for worker in self.paused:
            worker.client().set_role(RoleRequest(worker=True, paused=False))


# --- while answers are under way


def kill_stage(scene: Scene) -> None:
    _kill_stage(scene, scene.victim())


def kill_node(scene: Scene) -> None:
    victim = scene.victim()
    scene.say(f"{victim.name}: node killed")
    victim.kill_node()


def kill_own_stage(scene: Scene) -> None:
    _kill_stage(scene, scene.cluster.master)


def freeze_stage(scene: Scene) -> None:
    _freeze_stage(scene, scene.scenario.seconds)


def hang_stage(scene: Scene) -> None:
    _freeze_stage(scene, None)


def freeze_computer(scene: Scene) -> None:
    _freeze_computer(scene, scene.scenario.seconds)


def hang_computer(scene: Scene) -> None:
    _freeze_computer(scene, None)


def cut(scene: Scene) -> None:
    _change_link(scene, scene.victim(), Link(up=False), scene.scenario.seconds)


def cut_for_good(scene: Scene) -> None:
    _change_link(scene, scene.victim(), Link(up=False), None)


def cut_master(scene: Scene) -> None:
    _change_link(scene, scene.cluster.master, Link(up=False), min(scene.scenario.seconds, 2.0))


def loss(scene: Scene) -> None:
    link = Link(loss_percent=round(1 + 9 * scene.scenario.strength, 1))
    _change_link(scene, scene.victim(), link, scene.scenario.seconds)


def latency(scene: Scene) -> None:
    link = Link(latency_ms=round(5 + 95 * scene.scenario.strength))
    _change_link(scene, scene.victim(), link, scene.scenario.seconds)


def twice(scene: Scene) -> None:
    link = Link(twice_percent=round(1 + 29 * scene.scenario.strength))
    _change_link(scene, scene.victim(), link, scene.scenario.seconds)


def reorder(scene: Scene) -> None:
    link = Link(late_percent=round(1 + 29 * scene.scenario.strength))
    _change_link(scene, scene.victim(), link, scene.scenario.seconds)


def leave(scene: Scene) -> None:
    victim = scene.victim()
    scene.say(f"{victim.name}: its owner ends it")
    victim.quit()


def pause(scene: Scene) -> None:
    victim = scene.victim()
    scene.say(f"{victim.name}: its owner pauses it")
    scene.paused.append(victim)
    victim.client().set_role(RoleRequest(worker=True, paused=True))


def clock_jump(scene: Scene) -> None:
    """Set the clock of the master or of a worker, to some minutes or many years from now."""
    source = random.Random(scene.scenario.seed)
    victim = source.choice((scene.victim(), scene.cluster.master))
    seconds = source.choice((1, -1)) * source.choice((90, 3600, 86_400, 400 * 86_400, 20 * YEAR_S))
    scene.say(
        f"{victim.name}: clock {seconds:+} s" + ("" if victim.clock.can_move else ", without cc")
    )
    victim.clock.set(seconds)


def kill_master(scene: Scene) -> None:
    """Kill the master's node. Its owner starts it again at once."""
    scene.say("master: node killed")
    scene.forgotten = True
    scene.cluster.master.kill_node()
    scene.cluster.master.start(worker=False)


def two_kills(scene: Scene) -> None:
    """The second one comes when the answers have had time to go on."""
    first = scene.victim()
    _kill_stage(scene, first)
    scene.after(1.0 + scene.scenario.seconds / 2, lambda: _kill_another(scene, first))


def kill_in_recovery(scene: Scene) -> None:
    first = scene.victim()
    _kill_stage(scene, first)
    scene.after(0.02 + 0.8 * scene.scenario.strength, lambda: _kill_another(scene, first))


def _kill_another(scene: Scene, first: Host) -> None:
    """Kill the node of another worker than the first victim, one with a stage if there is one."""
    others = [s.node for s in scene.cluster.stages() if s.node not in (MASTER, first.name)]
    others = others or [w.name for w in scene.cluster.workers if w is not first]
    victim = scene.cluster.hosts[others[int(scene.scenario.victims[1] * len(others))]]
    scene.say(f"{victim.name}: node killed")
    victim.kill_node()


def _kill_stage(scene: Scene, victim: Host) -> None:
    scene.say(f"{victim.name}: stage killed")
    victim.kill_stage()


def slow_stage(scene: Scene) -> None:
    victim, seconds = scene.victim(), scene.scenario.seconds
    scene.say(f"{victim.name}: stage slow{_for(seconds)}")
    _stand_still(scene, victim, time.monotonic() + seconds)


def _stand_still(scene: Scene, victim: Host, ends_at: float) -> None:
    victim.signal_stage(signal.SIGSTOP)
    scene.after(SLOW_S[0], lambda: _run_a_little(scene, victim, ends_at))


def _run_a_little(scene: Scene, victim: Host, ends_at: float) -> None:
    victim.signal_stage(signal.SIGCONT)
    if time.monotonic() < ends_at:
        scene.after(SLOW_S[1], lambda: _stand_still(scene, victim, ends_at))


def _freeze_stage(scene: Scene, seconds: float | None) -> None:
    victim = scene.victim()
    scene.say(f"{victim.name}: stage frozen{_for(seconds)}")
    victim.signal_stage(signal.SIGSTOP)
    if seconds is not None:
        scene.after(seconds, lambda: victim.signal_stage(signal.SIGCONT))


def _freeze_computer(scene: Scene, seconds: float | None) -> None:
    victim = scene.victim()
    scene.say(f"{victim.name}: frozen{_for(seconds)}")
    victim.signal_all(signal.SIGSTOP)
    if seconds is not None:
        scene.after(seconds, lambda: victim.signal_all(signal.SIGCONT))


def _change_link(scene: Scene, victim: Host, link: Link, seconds: float | None) -> None:
    lan = scene.cluster.lan
    how = "link cut"
    if link.up:
        values = asdict(link).items()
        how = "link with " + ", ".join(f"{k}={v:g}" for k, v in values if k != "up" and v)
    scene.say(f"{victim.name}: {how}{_for(seconds)}")
    lan.set_link(victim.name, link)
    if seconds is not None:
        scene.after(seconds, lambda: lan.set_link(victim.name))


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {seconds} s"


# --- while the model is loaded


def corrupt_store(scene: Scene) -> None:
    """Alter a tensor of a worker's store, cut it short, or delete it, and have it read again."""
    victim = scene.victim()
    source = random.Random(scene.scenario.seed)
    path = source.choice(victim.tensors[:USED_LAST] or [Path()])
    how = source.choice(("a bit flipped", "cut short", "emptied", "deleted"))
    scene.say(f"{victim.name}: a tensor {how}")
    victim.kill_stage()  # what it has loaded it would not read again
    if path.is_file():
        _damage(path, how, source)


def _damage(path: Path, how: str, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "deleted":
            path.unlink()
            return
        case "cut short":
            del data[source.randrange(len(data)) :]
        case "emptied":
            data.clear()
        case _:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def cut_transfer(scene: Scene) -> None:
    _change_link(scene, scene.victim(), Link(up=False), scene.scenario.seconds)


def full_disk(scene: Scene) -> None:
    """Fill the disk up to what a store leaves free, or nearly so."""
    _fill_disk(scene, RESERVE)


def disk_fills(scene: Scene) -> None:
    """Another program fills the disk to the last byte, or nearly so."""
    _fill_disk(scene, 0)


def _fill_disk(scene: Scene, reserve: int) -> None:
    victim = scene.victim()
    left = int(scene.scenario.strength * 200_000)
    scene.say(f"{victim.name}: {left} bytes of disk left")
    victim.fill_disk(reserve + left)


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill-stage": kill_stage,
    "kill-node": kill_node,
    "kill-own-stage": kill_own_stage,
    "freeze-stage": freeze_stage,
    "freeze-computer": freeze_computer,
    "hang-stage": hang_stage,
    "hang-computer": hang_computer,
    "cut": cut,
    "cut-for-good": cut_for_good,
    "cut-master": cut_master,
    "loss": loss,
    "latency": latency,
    "quit": leave,
    "pause": pause,
    "clock-jump": clock_jump,
    "kill-master": kill_master,
    "two-kills": two_kills,
    "kill-in-recovery": kill_in_recovery,
    "corrupt-store": corrupt_store,
    "cut-transfer": cut_transfer,
    "kill-transfer": kill_node,
    "full-disk": full_disk,
    "disk-fills": disk_fills,
    "twice": twice,
    "reorder": reorder,
    "slow-stage": slow_stage,
}
