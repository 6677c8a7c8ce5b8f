"""Devices as the planner sees them, of what they lend and of what was measured on them."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.cluster.computer import Computer
from potluck.cluster.device_names import device_label
from potluck.cluster.master.ages import too_old
from potluck.model.config import ModelConfig
from potluck.model.footprint import usable_memory
from potluck.model.schemes import Scheme
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.depth import chunk_read_ms, token_read_ms
from potluck.plan.shape import kinds_of
from potluck.wire.measuring_messages import Profiled
from potluck.wire.versions import RANKS_SINCE, READERS_SINCE


def unmeasured_devices(
    computers: Sequence[Computer], config: ModelConfig, scheme: Scheme, *, working: int = 0
) -> list[DeviceCost] | None:
    """The devices with the memory that they lend, but without times: enough to see what would fit.

    Returns:
        None if the devices of a computer are not known yet.
    """
    if not all(computer.devices for computer in computers):
        return None
    unknown = (0.0,) * len(kinds_of(config))
    profiles = [
        (computer, Profiled(device=device, decode_ms=unknown, prefill_ms=unknown, head_ms=0.0))
        for computer in computers
        if too_old(computer, config, scheme) is None
        for device in {device.id: device for device in computer.devices}.values()
    ]
    return [device_cost(computer, profile, scheme, working) for computer, profile in profiles]


def with_depth(cost: DeviceCost, profile: Profiled, shape: ModelShape, *, chunk: int) -> DeviceCost:
    """The same, with what tokens take longer in a long conversation, if the device has measured it; `chunk` tokens of a prompt."""
    if not len(profile.decode_ms) == len(profile.deep_decode_ms) == len(profile.deep_prefill_ms):
        return cost
    return replace(
        cost,
        token_read_ms=token_read_ms(shape, cost.decode_ms, profile.deep_decode_ms, profile.deep),
        chunk_read_ms=chunk_read_ms(
            shape, cost.prefill_ms, profile.deep_prefill_ms, profile.deep, chunk
        ),
    )


def device_cost(computer: Computer, profile: Profiled, scheme: Scheme, working: int) -> DeviceCost:
    """A device for the planner, with the memory that it lends now, less `working` bytes."""
    device = profile.device
    now = next((d for d in computer.devices if d.id == device.id), device)
    return DeviceCost(
        node=computer.node_id,
        name=computer.name,
        device=device_label(device, computer.devices),
        memory=max(0, usable_memory(now.memory_free, device.kind, scheme) - working),
        decode_ms=profile.decode_ms,
        prefill_ms=profile.prefill_ms,
        head_ms=profile.head_ms,
        # A GPU would wait for its sums in the computer's memory: by hand alone.
        can_rank=computer.version >= RANKS_SINCE and device.kind == "cpu",
        moves_caches=computer.version >= READERS_SINCE,
        picture_ms=profile.picture_ms,
        is_wide=profile.is_wide,
        on_wifi=computer.on_wifi,
    )
