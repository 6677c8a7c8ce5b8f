"""Measure fake computers, and tell the measurements of answers."""

from fake_cluster import FakeComputer
from model_folders import CONFIG

from potluck.cluster.master.measurements import NEEDED, Measurements
from potluck.model.config import ModelConfig
from potluck.model.schemes import Cache
from potluck.plan.cost import DeviceCost

SHAPE = ModelConfig.from_dict(CONFIG)


async def measured(measurements: Measurements, *computers: FakeComputer) -> list[DeviceCost]:
    return await measurements.device_costs(computers, CONFIG, SHAPE, "f32")


def observe(
    measurements: Measurements,
    computer: FakeComputer,
    measured_ms: float,
    *,
    device: int = 0,
    cache: Cache = "full",
    times: int = NEEDED,
) -> None:
    """A device had all layers and the head, for so many windows."""
    for _ in range(times):
        measurements.observe(
            computer.node_id,
            computer.devices[device].id,
            SHAPE,
            "f32",
            measured_ms,
            layers=range(SHAPE.num_layers),
            head=True,
            cache=cache,
        )
