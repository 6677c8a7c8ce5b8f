"""The measurements that the planner needs: each device on the real layer shapes, and each link.

Measurements are kept, on disk too (`kept.py`): a profile by device, layer shape, scheme and cache; a
link and a sum by their two ends (`links.py sums.py`). Memory is not kept: it is always the memory free now.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from typing import TypeAlias

import msgspec

from potluck.cluster.computer import Computer
from potluck.cluster.device_names import place_name
from potluck.cluster.master.ages import too_old
from potluck.cluster.master.device_costs import device_cost, with_depth
from potluck.cluster.master.kept import KeptMeasurements, KeptProfile
from potluck.cluster.master.links import Links
from potluck.cluster.master.sums import Sums
from potluck.errors import EngineError, PeerLostError, PeerTimeoutError, PotluckError
from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.model.schemes import Cache, Scheme
from potluck.plan.correction import Correction
from potluck.plan.cost import DeviceCost
from potluck.plan.deviation import QUICKER
from potluck.plan.shape import kinds_of, numbered_kinds, read_bytes, shape_of
from potluck.wire.measuring_messages import Profile, Profiled
from potluck.wire.messages import DeviceId, DeviceInfo

logger = logging.getLogger(__name__)

MAX_SLOWER = 8.0  # a device that is slower counts as this slow
NEEDED = 4  # means of `WINDOW_S` that agree: a device is slow after 20 seconds of computing
PROFILE_TOKENS = 128  # length of the prefill chunk that is timed
# Node, device, name of the card (it may be replaced; None: not known yet), layer shape, scheme,
# cache.
_ProfileKey: TypeAlias = tuple[NodeId, DeviceId | None, str | None, str, Scheme, Cache]
_MeasuredAs: TypeAlias = tuple[str, Scheme, Cache]  # the end of such a key


@dataclass(frozen=True, slots=True)
class _Problem:
    """A device that could not be measured, and why."""

    place: str
    error: PotluckError


@dataclass(frozen=True, slots=True)
class _KnownDevice:
    """The profile of a device, and its correction by the times in use."""

    profile: Profiled
    at: float  # when it was measured, in seconds since 1970
    name: str = ""  # of the computer
    read_bytes: int = 0  # of weights that a token reads in one layer of each kind; 0: not known
    # At most so many are kept that a number of `NEEDED` is more than half of them and the profile.
    correction: Correction = field(
        default_factory=lambda: Correction(needed=NEEDED, most=2 * NEEDED - 2, max_ratio=MAX_SLOWER)
    )

    def corrected(self, now: float, usual: float) -> Profiled:
        factor = self.correction.factor(now, usual)
        return msgspec.structs.replace(
            self.profile,
            decode_ms=tuple(ms * factor for ms in self.profile.decode_ms),
            deep_decode_ms=tuple(ms * factor for ms in self.profile.deep_decode_ms),
            head_ms=self.profile.head_ms * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """A profile of a device."""

    node_id: NodeId
    name: str  # of its computer
    measured_as: tuple[str, Scheme, Cache]  # the shape, as `shape_key` names it
    profile: Profiled
    read_bytes: int  # of weights that a token reads in one layer of each kind; 0: not known


class Measurements:
    """Measures computers and links, and remembers the results.

    Args:
        kept: the measurements of the node before, which are taken over.
        clock: its seconds count from any moment.
    """

    def __init__(
        self,
        *,
        kept: KeptMeasurements | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._kept = kept if kept is not None else KeptMeasurements(None)
        self._profiles: dict[_ProfileKey, _KnownDevice] = {}
        self.links = Links(clock=clock, date=self._kept.now, changed=self._remember)
        self.sums = Sums(clock=clock, date=self._kept.now, changed=self._remember)
        self._recall()

    def _recall(self) -> None:
        profiles, links, sums = self._kept.recall()
        for kept in profiles:
            device = kept.profile.device
            measured_as = (kept.shape, kept.scheme, kept.cache)
            key = (kept.node_id, device.id, device.name, *measured_as)
            self._profiles[key] = _KnownDevice(kept.profile, kept.at, kept.name, kept.read_bytes)
        self.links.recall(links)
        self.sums.recall(sums)

    def _remember(self) -> None:
        self._kept.remember(
            (
                KeptProfile(
                    node_id=node_id,
                    shape=shape,
                    scheme=scheme,
                    cache=cache,
                    profile=known.profile,
                    at=known.at,
                    name=known.name,
                    read_bytes=known.read_bytes,
                )
                for (node_id, _, _, shape, scheme, cache), known in self._profiles.items()
            ),
            self.links.kept(),
            self.sums.kept(),
        )

    async def device_costs(
        self,
        computers: Sequence[Computer],
        raw_config: Mapping[str, object],
        config: ModelConfig,
        scheme: Scheme,
        *,
        cache: Cache = "full",
        working: int = 0,
        left_out: Callable[[str], None] = lambda note: None,
    ) -> list[DeviceCost]:
        """The costs of each device that could be measured, in the order of computers and devices.

        Different computers measure at the same time. The devices of one computer measure one after
        the other, since two at once would slow each other down. The same holds for several nodes on
        one computer (containers, other users).

        Args:
            computers: the master first.
            raw_config: the model's `config.json`.
            config: the same configuration, parsed.
            scheme: the number format of the weights in memory.
            cache: how keys and values are kept.
            working: bytes of working memory of a stage; they are subtracted from what a device
                lends.
            left_out: called with a sentence for each device that could not be measured.

        Raises:
            PotluckError: no device of the master can compute.
        """
        turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        wanted = Profile(config=dict(raw_config), scheme=scheme, tokens=PROFILE_TOKENS, cache=cache)

        async def measure(computer: Computer) -> "list[Profiled | _Problem]":
            async with turns[computer.machine or computer.node_id]:
                return await self._measure_devices(computer, wanted, config)

        everyone = await asyncio.gather(*map(measure, computers))
        shape = shape_of(config, scheme, context=1, cache=cache)
        devices: list[DeviceCost] = []
        for computer, results in zip(computers, everyone, strict=True):
            profiles = [result for result in results if isinstance(result, Profiled)]
            problems = [result for result in results if isinstance(result, _Problem)]
            if computer is computers[0] and not profiles:
                raise problems[0].error
            devices += [
                with_depth(
                    device_cost(computer, profile, scheme, working),
                    profile,
                    shape,
                    chunk=PROFILE_TOKENS,
                )
                for profile in profiles
            ]
            for problem in problems:
                logger.warning("no profile of %s: %s", problem.place, problem.error)
                left_out(f"{problem.place} is left out: {problem.error.message}")
        return devices

    async def _measure_devices(
        self, computer: Computer, wanted: Profile, config: ModelConfig
    ) -> "list[Profiled | _Problem]":
        """For each device of a computer: its profile, or why it could not be measured."""
        if (error := too_old(computer, config, wanted.scheme)) is not None:
            return [_Problem(computer.name, error)]
        results: list[Profiled | _Problem] = []
        # None: its stage process is just starting, and its devices are not known yet. So the best
        # device is measured first, and then the others are known.
        once = {device.id: device for device in computer.devices}  # a peer may list a device twice
        todo: deque[DeviceInfo | None] = deque(once.values() or (None,))
        while todo:
            device = todo.popleft()
            try:
                profile = await self._profile(computer, device, wanted, config)
            except PotluckError as error:
                place = place_name(computer.name, device, computer.devices) if device else ""
                results.append(_Problem(place or computer.name, error))
                if isinstance(error, PeerLostError | PeerTimeoutError):
                    break  # the other devices cannot be asked either
            else:
                results.append(profile)
                if device is None:
                    todo.extend(d for d in computer.devices if d.id != profile.device.id)
        return results

    async def _profile(
        self,
        computer: Computer,
        device: DeviceInfo | None,
        wanted: Profile,
        config: ModelConfig,
    ) -> Profiled:
        measured_as: _MeasuredAs = (shape_key(config), wanted.scheme, wanted.cache)
        key = (computer.node_id, device and device.id, device and device.name, *measured_as)
        if (known := self._profiles.get(key)) is None:
            asked = msgspec.structs.replace(wanted, device=device and device.id)
            profile = await computer.profile(asked)
            if {len(profile.decode_ms), len(profile.prefill_ms)} != {len(kinds_of(config))}:
                raise EngineError(
                    f"{computer.name} measured other layers than the model has."
                    " It may run another version of Potluck: update it."
                )
            measured = profile.device
            if device is not None and measured.id != device.id:
                raise EngineError(f"{computer.name} measured another device than it was asked.")
            read = sum(read_bytes(shape_of(config, wanted.scheme, context=1)))
            known = _KnownDevice(profile, self._kept.now(), computer.name, read)
            self._profiles[computer.node_id, measured.id, measured.name, *measured_as] = known
            self._remember()
        return known.corrected(self._clock(), self._usual(measured_as))

    def has_profiles(
        self, computer: Computer, config: ModelConfig, scheme: Scheme, cache: Cache
    ) -> bool:
        """Whether the devices of a computer are known, and each was measured on this model."""
        measured_as = (shape_key(config), scheme, cache)
        return bool(computer.devices) and all(
            (computer.node_id, device.id, device.name, *measured_as) in self._profiles
            for device in computer.devices
        )

    def known(self) -> Iterator["MeasuredDevice"]:
        """Every profile, as use has corrected it."""
        now = self._clock()
        for (node_id, _, _, shape, scheme, cache), known in self._profiles.items():
            measured_as = (shape, scheme, cache)
            yield MeasuredDevice(
                node_id=node_id,
                name=known.name,
                measured_as=measured_as,
                profile=known.corrected(now, self._usual(measured_as)),
                read_bytes=known.read_bytes,
            )

    def observe(
        self,
        node_id: NodeId,
        device: DeviceId,
        config: ModelConfig,
        scheme: Scheme,
        measured_ms: float,
        *,
        layers: range,
        head: bool,
        cache: Cache = "full",
    ) -> None:
        """Correct a device's profile by the time that a token took in these layers, for `WINDOW_S`.

        The profile stays as it was measured. The correction is the ratio of the measured time to
        the time that this profile predicts, and it is forgotten together with the profile.
        """
        kinds = numbered_kinds(config)
        wanted = (node_id, device, shape_key(config), scheme, cache)
        for (node, of_device, _, *measured_as), known in self._profiles.items():
            if (node, of_device, *measured_as) != wanted:
                continue
            times = known.profile.decode_ms
            predicted_ms = sum(times[kinds[layer]] for layer in layers)
            predicted_ms += known.profile.head_ms * head
            if predicted_ms > 0 and isfinite(measured_ms):
                known.correction.observe(measured_ms / predicted_ms, self._clock())

    def factors(
        self, config: ModelConfig, scheme: Scheme, cache: Cache
    ) -> Mapping[tuple[NodeId, DeviceId], float]:
        """How many times as long as usual each device takes that was measured on this model."""
        measured_as: _MeasuredAs = (shape_key(config), scheme, cache)
        now, usual = self._clock(), self._usual(measured_as)
        return {
            (node_id, known.profile.device.id): known.correction.factor(now, usual) / usual
            for (node_id, _, _, *rest), known in self._profiles.items()
            if tuple(rest) == measured_as
        }

    def _usual(self, measured_as: _MeasuredAs) -> float:
        """How many times as long as its profile says a device takes in use, if nothing is wrong with it.

        A token in use finds its weights out of the caches, and each step costs something besides its
        layers, so most devices take longer than at rest. What all devices in use have in common is
        usual; if there is one, what was so before. Without this, those that are not in use would
        seem to be faster than all others.
        """
        now = self._clock()
        same = (known for key, known in self._profiles.items() if key[3:] == measured_as)
        used = [known.correction for known in same if known.correction.believed(now) is not None]
        if len(used) == 1:
            return used[0].lowest or 1.0
        return min((c.believed(now) or 1.0 for c in used), default=1.0)

    async def look_again(self, computer: Computer, device: DeviceId, planned_as: Profile) -> None:
        """Measure a slow device that has nothing to compute, so no use says that it is quick again.

        The profile stays as it is. If the device takes as long as the profile says, its correction is
        forgotten. Else this time counts as one in use.

        Raises:
            PotluckError: it could not be measured.
        """
        config = ModelConfig.from_dict(planned_as.config)
        measured_as = (shape_key(config), planned_as.scheme, planned_as.cache)
        asked = msgspec.structs.replace(planned_as, device=device)
        measured_ms = sum((await computer.profile(asked)).decode_ms)
        for (node_id, of_device, _, *rest), known in self._profiles.items():
            if (node_id, of_device, *rest) != (computer.node_id, device, *measured_as):
                continue
            profiled_ms = sum(known.profile.decode_ms)
            if measured_ms < QUICKER * profiled_ms:
                known.correction.forget()
            elif profiled_ms > 0 and isfinite(measured_ms):
                known.correction.observe(measured_ms / profiled_ms, self._clock())

    def lost(self, node_id: NodeId) -> None:
        """Forget the links of a computer that left, and its sums: it may be in another place when it comes back."""
        self.links.forget(node_id)
        self.sums.forget(node_id)

    def forget_profiles(self, node_id: NodeId) -> None:
        """Forget a computer's profiles, because its speed has changed."""
        self._profiles = {key: known for key, known in self._profiles.items() if key[0] != node_id}
        self._remember()


def shape_key(config: ModelConfig) -> str:
    """A key that is equal for models whose layers of each kind cost the same."""
    stored = config.quantization
    formats = stored and (stored.has_coarse_head, stored.has_super_blocks, stored.is_even)
    shape = (config.vocab_size, kinds_of(config), formats)
    return sha256(msgspec.json.encode(shape, order="deterministic")).hexdigest()
