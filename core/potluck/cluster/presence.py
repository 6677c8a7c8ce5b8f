"""What a node says of itself to other computers: what it is, where it is, and what it announces."""

import platform
import time
from collections.abc import Sequence

import msgspec

import potluck
from potluck.api.values.schema import Role
from potluck.cluster.device_names import describe
from potluck.cluster.machine import machine_id
from potluck.net.advert import Advert
from potluck.net.identity import Identity
from potluck.net.interfaces import Interfaces, announced
from potluck.wire.messages import Address, DeviceInfo, NodeInfo
from potluck.wire.versions import PROTOCOL_VERSIONS


class Presence:
    """The description of this node."""

    def __init__(self, identity: Identity, name: str, interfaces: Interfaces) -> None:
        """Describe a node that does not listen yet, and whose devices are not known."""
        self._identity = identity
        self._interfaces = interfaces
        self._info = NodeInfo(
            node_id=identity.node_id,
            name=name,
            version=potluck.__version__,
            os=f"{platform.system()} {platform.release()}"[:64],
            arch=platform.machine()[:32],
            machine=machine_id(),
        )

    def listens(self, port: int) -> None:
        """Note the port at which other computers reach this node."""
        self._info = msgspec.structs.replace(self._info, port=port)

    def rename(self, name: str) -> None:
        """Give this computer another name, which others learn when they connect the next time."""
        self._info = msgspec.structs.replace(self._info, name=name)

    def has(self, devices: Sequence[DeviceInfo]) -> None:
        """Note the devices."""
        self._info = msgspec.structs.replace(self._info, devices=tuple(devices))

    def me(self) -> NodeInfo:
        """This node's description, with the time of now."""
        return msgspec.structs.replace(self._info, clock=max(0.0, time.time()))

    def name(self) -> str:
        return self._info.name

    def port(self) -> int:
        """At which it listens; 0: not yet."""
        return self._info.port

    def addresses(self) -> tuple[Address, ...]:
        """Where other computers reach this one."""
        return tuple(Address(host=host, port=self.port()) for host in announced(self._interfaces()))

    def others_homes(self) -> tuple[str, ...]:
        """The names of other computers' homes that have this one already."""
        return tuple(h.name for h in self._identity.homes.values() if h.role == "worker")

    def advert(self, role: Role, *, is_lending: bool) -> Advert:
        """What is announced in the network."""
        home = self._identity.own_home
        return Advert(
            node_id=self._identity.node_id,
            name=self._info.name,
            role=role,
            port=self.port(),
            home=home.home_id if home is not None else None,
            joinable=is_lending and not self.others_homes(),
            devices=", ".join(describe(device) for device in self._info.devices),
            protocol=PROTOCOL_VERSIONS[-1],
        )
