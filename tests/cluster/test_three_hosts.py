"""The main job, as its users do it: three computers, the commands, real processes, one is killed."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from byte_model import LAYERS, make_byte_model
from hosts import Host, Lan

from potluck.model.config import ModelConfig
from potluck.model.tensor_formats import weight_bytes

COMPLETE = str(Path(__file__).parents[1] / "support" / "complete.py")
SPLIT = "master=2,desktop=2,laptop=2"
PROMPT = [72, 101, 108, 108, 111]

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    lan = Lan(["master", "desktop", "laptop"], tmp_path_factory.mktemp("lan"))
    try:
        yield lan
    finally:
        lan.close()


@pytest.fixture(scope="module")
def master(lan: Lan, model: Path) -> Host:
    """The main computer, with two workers that joined it by token."""
    master = lan.hosts["master"]
    name_host(master)
    for name in ("desktop", "laptop"):
        token = master.potluck("invite").strip()
        lan.hosts[name].start("-m", "potluck", "worker", "--join", token, "--name", name)
    wait_for(lambda: ready_workers(master) == {"desktop", "laptop"}, "both workers are ready")
    return master


def name_host(host: Host) -> None:
    """Name the computer, and give it the network of a home: packing would not pay on a faster one."""
    settings = {"name": host.name, "upload_limit_mbit": 940}
    (host.home / "config").mkdir(parents=True)
    (host.home / "config" / "settings.json").write_text(json.dumps(settings))


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Ask again and again: processes tell nobody when they are ready."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def devices(master: Host) -> list[dict[str, Any]]:
    return json.loads(master.potluck("devices", "--json"))


def ready_workers(master: Host) -> set[str]:
    return {
        computer["name"]
        for computer in devices(master)
        if computer["paired"] and computer["online"] and computer["name"] != "master"
        and computer["devices"]
    }  # fmt: skip


def chat(master: Host, model: Path, *options: str, scheme: str = "f32") -> dict[str, Any]:
    command = ["chat", "--model", str(model), "--scheme", scheme, "--temperature", "0"]
    words = [*command, "--max-tokens", "16", "--json", *options, "What is a potluck?"]
    return json.loads(master.potluck(*words))


def tokens(master: Host, **request: object) -> list[int]:
    """Greedy tokens of the model that is loaded."""
    events = [
        json.loads(line)
        for line in completion(master, **request).communicate()[0].split("\n")
        if line
    ]
    assert not any("error" in event for event in events), events
    return [token for event in events for token in event["token_ids"]]


def completion(master: Host, **request: object) -> "subprocess.Popen[str]":
    asked: Mapping[str, object] = {
        "prompt": PROMPT, "temperature": 0, "max_tokens": 32, "ignore_eos": True, **request
    }  # fmt: skip
    return master.start(COMPLETE, str(master.home), json.dumps(asked))


def layers_of(answer: dict[str, Any]) -> dict[str, int]:
    stages = answer["plan"]["stages"]
    return {stage["node"]: stage["layers"][1] - stage["layers"][0] for stage in stages}


def test_three_computers_answer_as_one_does(master: Host, model: Path) -> None:
    together = chat(master, model, "--layers", SPLIT)
    tokens_together = tokens(master)
    alone = chat(master, model, "--layers", f"master={LAYERS}")
    tokens_alone = tokens(master)

    assert layers_of(together) == {"master": 2, "desktop": 2, "laptop": 2}
    assert layers_of(alone) == {"master": LAYERS}
    assert tokens_together == tokens_alone
    assert len(tokens_alone) == 32
    assert together["text"] == alone["text"]
    assert together["streamed_bytes"]["desktop"] > 0
    assert together["streamed_bytes"]["laptop"] > 0


def test_weights_that_are_there_are_not_sent_again(master: Host, model: Path) -> None:
    chat(master, model, "--layers", f"master={LAYERS}")

    again = chat(master, model, "--layers", SPLIT)

    assert sum(again["streamed_bytes"].values()) == 0


def test_packed_matrices_are_what_is_sent_and_they_are_sent_once(master: Host, model: Path) -> None:
    together = chat(master, model, "--layers", SPLIT, scheme="int4")
    tokens_together = tokens(master)
    again = chat(master, model, "--layers", "laptop=2,master=2,desktop=2", scheme="int4")
    alone = chat(master, model, "--layers", f"master={LAYERS}", scheme="int4")

    config = ModelConfig.from_dict(json.loads((model / "config.json").read_text()))
    for name, layers in (("desktop", range(2, 4)), ("laptop", range(4, 6))):
        expected = config.stage_tensors(layers, embedding=False, head=name == "laptop")
        packed = weight_bytes(config, expected, "int4")
        assert 0.9 * packed < together["streamed_bytes"][name] <= packed  # norms may be there
    assert again["streamed_bytes"]["laptop"] > 0  # two layers and the embedding that it had not
    assert tokens(master) == tokens_together
    assert alone["text"] == together["text"]
    last = chat(master, model, "--layers", SPLIT, scheme="int4")
    assert sum(last["streamed_bytes"].values()) == 0


@pytest.mark.parametrize("end", [Host.kill, Host.terminate])
def test_a_main_computer_that_is_restarted_finds_what_its_workers_have_loaded(
    lan: Lan, master: Host, model: Path, end: Callable[[Host], None]
) -> None:
    chat(master, model, "--layers", SPLIT)
    before = tokens(master)
    loads = {name: loads_of(lan.hosts[name]) for name in ("desktop", "laptop")}
    pid = master.node_pid()
    end(master)
    wait_for(lambda: not psutil.pid_exists(pid), "the node of the main computer has ended")

    again = chat(master, model, "--layers", SPLIT)

    assert layers_of(again) == {"master": 2, "desktop": 2, "laptop": 2}
    assert tokens(master) == before
    for name, loads_before in loads.items():
        *those, last = loads_of(lan.hosts[name])
        assert those == loads_before
        assert "layers_kept=2 layers_loaded=0" in last


def loads_of(host: Host) -> list[str]:
    """What the log says of each load of this worker."""
    log = (host.home / "state" / "node.log").read_text(encoding="utf-8")
    return [line for line in log.split("\n") if "stage loaded" in line]


def tokens_with(fault: Callable[[], None], master: Host, **request: object) -> list[int]:
    """The tokens of an answer in whose middle this fault happens."""
    answer = completion(master, **request)
    assert answer.stdout is not None
    lines = [answer.stdout.readline() for _ in range(20)]
    fault()
    lines += answer.communicate()[0].split("\n")
    events = [json.loads(line) for line in lines if line.strip()]
    assert not any("error" in event for event in events), events
    return [token for event in events for token in event["token_ids"]]


def test_an_answer_goes_on_when_a_compute_process_is_killed_or_hangs(
    lan: Lan, master: Host, model: Path
) -> None:
    """In int8, where a token alone has other last bits than among others: the replay repeats."""
    request = {"max_tokens": 300, "temperature": 0.8, "seed": 7}
    faults = (("laptop", "SIGKILL"), ("master", "SIGKILL"), ("desktop", "SIGSTOP"))
    for name, end in faults:
        chat(master, model, "--layers", SPLIT, scheme="int8")
        before = tokens(master, **request)
        fault = partial(lan.hosts[name].end_engines, signal.Signals[end])
        assert tokens_with(fault, master, **request) == before
        wait_for(lambda: ready_workers(master) == {"desktop", "laptop"}, "all are back")


def test_an_answer_goes_on_when_the_node_of_a_worker_is_killed(
    lan: Lan, master: Host, model: Path
) -> None:
    chat(master, model, "--layers", SPLIT)
    before = tokens(master, max_tokens=400)

    assert tokens_with(lan.hosts["laptop"].kill, master, max_tokens=400) == before
    before = tokens(master)

    lan.hosts["laptop"].start("-m", "potluck", "worker")
    wait_for(lambda: "laptop" in ready_workers(master), "the laptop is back")
    again = chat(master, model, "--layers", SPLIT)
    assert layers_of(again) == {"master": 2, "desktop": 2, "laptop": 2}
    assert sum(again["streamed_bytes"].values()) == 0
    assert tokens(master) == before


def test_a_pulled_cable_is_noticed_by_its_heartbeats(lan: Lan, master: Host, model: Path) -> None:
    if not lan.has_cables:
        pytest.skip("loopback has no cable: needs network namespaces")
    chat(master, model, "--layers", SPLIT)
    before = tokens(master, max_tokens=400)

    def pull() -> None:
        lan.hosts["desktop"].set_cable(plugged=False)

    assert tokens_with(pull, master, max_tokens=400) == before
    lan.hosts["desktop"].set_cable(plugged=True)
    wait_for(lambda: "desktop" in ready_workers(master), "the desktop is back")


def test_a_removed_computer_takes_part_no_longer(lan: Lan, master: Host) -> None:
    master.potluck("unpair", "desktop")

    assert "desktop" not in ready_workers(master)
    homes = lan.hosts["desktop"].home / "data" / "identity" / "homes"
    wait_for(lambda: not any(homes.iterdir()), "the desktop has left the home")
