"""A deployment on fake computers, with a plan by hand, ready to start."""

from collections.abc import Callable

from fake_cluster import FakeComputer
from packing_engine import Workplace

from potluck.cluster.device_names import device_label
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.measurements import Measurements
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.stage_deployment import Retries
from potluck.model.schemes import Scheme
from potluck.plan.placement import make_plan
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel


async def deployment_on(
    model: LocalModel,
    *computers: FakeComputer,
    layers: tuple[int, ...] | tuple[tuple[str, int], ...],
    changed: Callable[[], None] = lambda: None,
    workplace: Workplace | None = None,
    link_rate: float | None = None,
    retries: Retries | None = None,
) -> Deployment:
    """Return a deployment on these computers, in this order and with these numbers of layers.

    The first computer is the master. Layers with a name are for that computer, or group. The scheme is int4 if there is a workplace that can pack, else
    f32.
    """
    scheme: Scheme = "f32" if workplace is None else "int4"
    measurements = Measurements()
    devices = await measurements.device_costs(
        computers, model.manifest.config, model.config, scheme
    )
    places = [
        c.name if len(c.devices) == 1 else f"{c.name}/{device_label(d, c.devices)}"
        for c in computers
        for d in c.devices
    ]
    by_hand = [
        each if isinstance(each, tuple) else (place, each)
        for place, each in zip(places, layers, strict=False)
    ]
    shape = shape_of(model.config, scheme, context=64)
    plan = make_plan(
        shape,
        devices,
        await measurements.links.measure(computers[0], computers[1:]),
        layers=by_hand,
    )
    planned = Planned(
        note="",
        cache="full",
        model=model,
        scheme=scheme,
        context=64,
        plan=plan,
        names={c.node_id: c.name for c in computers},
    )
    members = {c.node_id: c for c in computers}
    for computer in computers:
        computer.calls.clear()
    return Deployment(
        planned=planned,
        epoch=7,
        computers=members,
        changed=changed,
        packing=workplace.packing if workplace is not None else None,
        link_rate=lambda node: link_rate,
        retries=retries,
    )


def three() -> tuple[FakeComputer, FakeComputer, FakeComputer]:
    desk = FakeComputer("Desk", 1)
    desk.is_local = desk.stores_weights = True
    return desk, FakeComputer("Laptop", 2), FakeComputer("Mac", 3)
