"""This release and the one before it in one home, as real processes: what they share, and what they refuse."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from byte_model import LAYERS, make_byte_model
from earlier_release import NoHistoryError, earlier_commit, unpacked
from hosts import CORE, Host
from seeing_models import make_seeing_model

from potluck.settings import Folders
from potluck.wire.versions import SUPER_BLOCKS_SINCE

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.timeout(300)]

SPLIT = "desk=2,laptop=4"


@dataclass(frozen=True, slots=True)
class Home:
    """Two computers that are paired. One of them runs the release before."""

    desk: Host
    laptop: Host
    old: Host

    def demand_older(self) -> None:
        """Skip a test of what an older version of the protocol does not know, if it is not older."""
        code = "from potluck.wire.versions import PROTOCOL_VERSIONS as all; print(max(all))"
        spoken = int(self.old.run("-c", code).stdout)
        if spoken >= SUPER_BLOCKS_SINCE:
            pytest.skip(f"the release before speaks version {spoken} of the protocol, too")

    def stored(self) -> set[str]:
        """The names of the tensors that the laptop has on its disk."""
        folder = Folders.of(self.laptop.home).cache / "tensors"
        return {path.name for path in folder.rglob("*") if path.is_file()}

    def ask(self, command: str, model: Path, *options: str) -> Any:
        """Have the desk do this, and return what it prints for programs, or says as an error."""
        words = (command, "--model", str(model), "--json", *options)
        done = self.desk.run("-m", "potluck", *words, timeout_s=120)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def chat(self, model: Path, scheme: str, layers: str) -> Any:
        greedy = ("--temperature", "0", "--max-tokens", "12", "What is a potluck?")
        return self.ask("chat", model, "--scheme", scheme, "--layers", layers, *greedy)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def earlier(pytestconfig: pytest.Config) -> Path:
    """The sources of the release before."""
    assert pytestconfig.cache is not None
    try:
        return unpacked(earlier_commit(), pytestconfig.cache.mkdir("earlier")) / "core"
    except NoHistoryError as error:
        pytest.skip(f"the release before is not here: {error}")


@pytest.fixture(scope="module", params=["desk", "laptop"])
def home(
    request: pytest.FixtureRequest, earlier: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A desk and a laptop that joined it by token; the named one runs the release before."""
    base = tmp_path_factory.mktemp("home")
    hosts = {
        name: Host(name, base / name, core=earlier if name == request.param else CORE)
        for name in ("desk", "laptop")
    }
    desk, laptop = hosts["desk"], hosts["laptop"]
    try:
        for host in hosts.values():
            (host.home / "config").mkdir(parents=True)
            (host.home / "config" / "settings.json").write_text(json.dumps({"name": host.name}))
        token = desk.potluck("invite").strip()
        laptop.start("-m", "potluck", "worker", "--join", token, "--name", "laptop")
        _wait_for(lambda: _is_ready(desk), laptop)
        yield Home(desk, laptop, hosts[request.param])
    finally:
        for host in hosts.values():
            host.stop()


def _is_ready(desk: Host) -> bool:
    known = json.loads(desk.potluck("devices", "--json"))
    return any(
        c["name"] == "laptop" and c["paired"] and c["online"] and c["devices"] for c in known
    )


def _wait_for(condition: Callable[[], bool], laptop: Host, seconds: float = 90.0) -> None:
    """Ask again and again: processes tell nobody when they are ready."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"they did not pair\n{laptop.log()}"
        time.sleep(0.2)


def _sentences(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said)


# Beside packed weights, attention rounds to bf16 in the newer program alone, so that the letters may be others.
@pytest.mark.parametrize(("scheme", "is_exact"), [("f32", True), ("int8", False)])
def test_what_both_know_they_compute_together(
    home: Home, model: Path, scheme: str, is_exact: bool
) -> None:
    together = home.chat(model, scheme, SPLIT)
    assert isinstance(together, dict), f"{together}\n{home.laptop.log()}"
    assert {stage["node"] for stage in together["plan"]["stages"]} == {"desk", "laptop"}
    assert together["completion_tokens"] == 12

    alone = home.chat(model, scheme, f"desk={LAYERS}")
    assert alone["completion_tokens"] == 12
    assert together["text"] == alone["text"] or not is_exact


def test_weights_that_the_older_one_holds_otherwise_are_refused_with_its_name(
    home: Home, model: Path
) -> None:
    home.demand_older()
    before = home.stored()
    said = _sentences(home.chat(model, "int4", SPLIT))

    why = f"{home.old.name} cannot share weights in int4, since its Potluck is too old. Update it there."
    assert f"laptop is left out: {why}" in said
    assert home.stored() == before


def test_a_plan_of_such_weights_does_without_the_other_and_says_why(
    home: Home, model: Path
) -> None:
    home.demand_older()
    planned = home.ask("plan", model, "--scheme", "int4")

    assert isinstance(planned, dict), planned
    assert {stage["node"] for stage in planned["stages"]} == {"desk"}
    assert f"{home.old.name} cannot share weights in int4" in _sentences(planned)


def test_a_model_that_sees_is_planned_without_the_other(
    home: Home, model: Path, tmp_path: Path
) -> None:
    home.demand_older()
    make_seeing_model("gemma 3", tmp_path)
    for file in model.glob("tokenizer*"):
        shutil.copy(file, tmp_path)

    planned = home.ask("plan", tmp_path)

    assert isinstance(planned, dict), planned
    assert {stage["node"] for stage in planned["stages"]} == {"desk"}
    why = f"{home.old.name} cannot share a model that sees pictures, since its Potluck is too old."
    assert why in _sentences(planned)
