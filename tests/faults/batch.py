"""Many runs on one home, and what is printed of them."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from faults import soak as soaking
from faults.cluster import Cluster
from faults.harness import Harness
from faults.host import TooLateError
from faults.models import MODELS
from faults.report import Result, table
from faults.scenario import Scenario, in_order, scenario
from potluck.errors import PotluckError


def run(folder: Path, options: argparse.Namespace) -> int:
    """Carry out the runs. Return the exit status."""
    seeds = range(options.seed, options.seed + options.runs)
    scenarios = in_order(scenario(seed, MODELS, options.kind) for seed in seeds)
    results: list[Result] = []
    homes = Homes(folder, options.silence)
    try:
        for one in scenarios:
            results.append(homes.run(one))
            print(
                json.dumps(asdict(results[-1])) if options.json else results[-1].line(), flush=True
            )
    finally:
        homes.close()
        print(table(results), file=sys.stderr if options.json else sys.stdout)
    return _status(results)


def _status(results: Sequence[Result]) -> int:
    return int(any(result.verdict == "lost" or result.leaks for result in results))


class Homes:
    """The home that runs take place in. One that cannot be repaired is replaced."""

    def __init__(self, folder: Path, silence_s: float) -> None:
        self._folder, self._silence_s = folder, silence_s
        self._number = 0
        self._harness = self._new()

    def _new(self) -> Harness:
        self._number += 1
        return Harness(Cluster(self._folder / str(self._number)), self._silence_s)

    def run(self, one: Scenario) -> Result:
        """Carry out one run, also if the home breaks in it."""
        began = time.monotonic()
        try:
            return self._harness.run(one)
        except (PotluckError, TooLateError, RuntimeError) as error:
            result = _broken(one, f"the home broke: {error}", time.monotonic() - began)
        self.close()
        self._harness = self._new()
        return result

    def close(self) -> None:
        self._harness.cluster.close()


def _broken(one: Scenario, why: str, took_s: float) -> Result:
    return Result(
        seed=one.seed,
        kind=one.kind,
        model=one.model,
        scheme=one.scheme,
        sampled=one.questions[0].sampled,
        sessions=len(one.questions),
        plan="",
        what="",
        verdict="lost",
        why=why,
        took_s=took_s,
    )


def soak(folder: Path, options: argparse.Namespace) -> int:
    """Soak one home. Return the exit status: 1 if an answer was not the undisturbed one."""
    cluster = Cluster(folder)
    try:
        began = time.monotonic()

        def say(what: str) -> None:
            print(f"{time.monotonic() - began:7.1f} s  {what}", file=sys.stderr, flush=True)

        seen = soaking.soak(Harness(cluster, options.silence), options.soak, options.seed, say)
    finally:
        cluster.close()
    print(msgspec.json.encode(seen).decode() if options.json else seen.table())
    return int(set(seen.verdicts) != {"equal"})
