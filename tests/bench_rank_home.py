"""What ranks gain across computers, predicted beside measured: `python tests/bench_rank_home.py DESK ATTIC`. Not a test.

    DESK, ATTIC           commands that run another one on these computers, each as one word: "ip netns exec desk taskset -c 0"
    --shape qwen-0.5b     with random weights
    --scheme int4
    --prompt 256          tokens of a prompt
    --repeat 3
    --divisions desk,both,pipeline    which to measure, in this order; more than once: "desk,both,desk,both"

Two nodes of this checkout, each with one thread, are paired; DESK is the main one. `potluck bench` measures the model on
DESK alone, as a rank group, and in two halves one after the other.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from potluck.model.shapes.table import SHAPES
from potluck.settings import Folders, Settings, save_settings

CORE = Path(__file__).parents[1] / "core"
STARTS_S = 60.0
CGROUPS = Path("/sys/fs/cgroup")
LEAST_QUOTA_US, LEAST_PERIOD_US = 1_000, 20_000  # short, so that no step ends before it is slowed


class Computer:
    """A computer with a node in a folder of its own."""

    def __init__(self, on: str, name: str, folder: Path) -> None:
        self._on, self.name, self._home = shlex.split(on), name, folder / name
        self._home.mkdir()
        self._node: subprocess.Popen[bytes] | None = None
        file = Folders.of(self._home).settings_file
        file.parent.mkdir(parents=True)
        save_settings(file, Settings(name=name, threads=1))

    def _command(self, *words: str) -> list[str]:
        environment = {
            "POTLUCK_HOME": self._home,
            "PYTHONPATH": CORE,
            "OMP_NUM_THREADS": 1,
        }
        settings = [f"{key}={value}" for key, value in environment.items()]
        return [*self._on, "env", *settings, sys.executable, "-P", "-m", "potluck", *words]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        self._node = subprocess.Popen(
            self._command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self._node

    @property
    def engine(self) -> psutil.Process:
        """The process that computes."""
        assert self._node is not None
        for process in psutil.Process(self._node.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any("potluck.cluster.stage" in word for word in process.cmdline()):
                    return process
        raise SystemExit(f"{self.name} has no engine.")

    @contextmanager
    def slowed(self, share: float) -> Generator[None, None, None]:
        """Let the engine have a share of a core; root, with cgroups."""
        if share >= 1:
            yield
            return
        old, process = (CGROUPS / "cpu").is_dir(), self.engine
        group = (CGROUPS / "cpu" if old else CGROUPS) / f"potluck-bench-{process.pid}"
        period = max(LEAST_PERIOD_US, round(LEAST_QUOTA_US / share))
        quota = round(share * period)
        group.mkdir()
        try:
            if old:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {period}")
            (group / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(str(process.pid))
                group.rmdir()

    def ask(self, *words: str) -> str:
        done = subprocess.run(self._command(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            log = self._home / "state" / "node.log"
            said = log.read_text(errors="replace")[-4000:] if log.exists() else ""
            raise SystemExit(f"{self.name}: potluck {' '.join(words)}: {done.stderr}\n{said}")
        return done.stdout

    def wait_for(self, what: str, *words: str) -> None:
        """Ask until the answer has this in it."""
        ends_at = time.monotonic() + STARTS_S
        while time.monotonic() < ends_at:
            done = subprocess.run(
                self._command(*words), capture_output=True, text=True, check=False
            )
            if what in done.stdout:
                return
            time.sleep(0.3)
        raise SystemExit(f"{self.name}: no {what} within {STARTS_S:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("desk")
    parser.add_argument("attic")
    parser.add_argument("--shape", default="qwen-0.5b")
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--prompt", default="256")
    parser.add_argument("--repeat", default="3")
    parser.add_argument("--divisions", default="desk,both,pipeline")
    given = parser.parse_args()
    layers = int(str(SHAPES[given.shape]["num_hidden_layers"]))
    divisions = {
        "desk": f"desk={layers}",
        "both": f"desk+attic={layers}",
        "pipeline": f"desk={layers - layers // 2},attic={layers // 2}",
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        desk, attic = (
            Computer(on, name, Path(folder))
            for on, name in ((given.desk, "desk"), (given.attic, "attic"))
        )
        started = [desk.start("node")]
        try:
            desk.wait_for("desk", "devices")
            token = json.loads(desk.ask("invite", "--json"))["token"]
            started.append(attic.start("worker", "--join", token))
            desk.wait_for("attic", "devices")
            wanted = ["--scheme", given.scheme, "--prompt", given.prompt, "--repeat", given.repeat]
            for name in given.divisions.split(","):
                division = ["--layers", divisions[name], "--tokens", "48", "--json"]
                result = desk.ask("bench", "--shape", given.shape, *wanted, *division)
                report(name, json.loads(result))
        finally:
            for node in started:
                node.terminate()
            for node in started:
                node.wait()


def report(name: str, result: dict[str, float]) -> None:
    """Print a line of what was measured, and beside it what was predicted."""
    print(
        f"{name:9} decode {result['decode_tokens_per_s']:7.2f} tokens/s, {result['predicted_tokens_per_s']:7.2f} predicted;"
        f" prefill {result['prefill_tokens_per_s']:7.1f}, {result['predicted_prefill_tokens_per_s']:7.1f} predicted",
        result["sums"],
        flush=True,
    )


if __name__ == "__main__":
    main()
