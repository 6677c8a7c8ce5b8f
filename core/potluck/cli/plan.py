"""`plan`: which computer would compute which layers."""

import argparse
from pathlib import Path

import msgspec

from potluck.api.values.schema import PlanRequest, PlanView
from potluck.cli.computers import open_client, put_spares
from potluck.cli.printing import layers
from potluck.cli.terminal import put, put_json, put_table
from potluck.model.schemes import Scheme


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage in the output of `plan --json`."""

    node: str
    device: str
    layers: tuple[int, int]
    embedding: bool
    head: bool
    predicted_ms: float
    share: float = 1.0
    group: str = ""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in the output of `plan --json`."""

    model_id: str
    scheme: Scheme
    stages: tuple[PlannedStage, ...]
    predicted_tokens_per_s: float
    first_token_ms: float  # after the prompt that was asked about, or a usual one
    alone: dict[str, float | None]
    explanation: str
    readers: tuple[PlannedStage, ...] = ()  # who reads long prompts for these stages
    replicas: tuple[tuple[PlannedStage, ...], ...] = ()  # the other times that the model is held


def plan(options: argparse.Namespace) -> int:
    """Print which computer would compute which layers."""
    client, _ = open_client(options)
    request = msgspec.structs.replace(plan_request(options), prompt=options.prompt)
    made = client.plan(request)
    if options.json:
        put_json(planned(made))
    else:
        put_plan(made)
        put_spares(client.state().computers)
    return 0


def plan_request(options: argparse.Namespace, *, shape: str | None = None) -> PlanRequest:
    """Return the request that the options describe.

    A path is made absolute, since the node runs in another folder.
    """
    model: str | None = options.model
    if model is not None and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())
    return PlanRequest(
        model=model,
        shape=shape,
        scheme=options.scheme,
        cache=options.cache,
        layers=options.layers,
        prefill=options.prefill,
        pictures=options.pictures,
        workers=options.workers,
        context=options.context,
        users=options.users,
        replicas=options.replicas,
    )


def planned(view: PlanView) -> Planned:
    """Return the plan as scripts read it."""
    return msgspec.convert(view, Planned, from_attributes=True)


def put_plan(view: PlanView) -> None:
    """Print the plan for people."""
    put(f"{view.model} in {view.scheme}, {view.context:,} tokens of context")
    rows: list[tuple[str, ...]] = []
    replicas = [(number, stage) for number, own in enumerate(view.replicas, 2) for stage in own]
    stages = [("", stage) for stage in view.stages]
    stages += [("prompts: ", stage) for stage in view.readers]
    stages += [(f"replica {number}: ", stage) for number, stage in replicas]
    for part, stage in stages:
        start, stop = stage.layers
        parts = ["embedding"] if stage.embedding else []
        share = f"{100 * stage.share:.0f} % of " if stage.group else ""
        parts += [f"{share}{layers(start, stop)}"] if stop > start else []
        parts += ["head"] if stage.head else []
        computes = part + ", ".join(parts)
        rows.append((stage.node, stage.device, computes, f"{stage.predicted_ms:.2f} ms"))
    put_table(("COMPUTER", "DEVICE", "COMPUTES", "A TOKEN TAKES"), rows)
    put(f"Together: {view.predicted_tokens_per_s:.1f} tokens/s predicted for one user.")
    if view.users > 1 and view.users_tokens_per_s is not None:
        put(f"For {view.users} at once: {view.users_tokens_per_s:.1f} tokens/s together.")
    for name, rate in view.alone.items():
        put(f"{name} alone: {'does not fit' if rate is None else f'{rate:.1f} tokens/s'}.")
    put(view.explanation)
