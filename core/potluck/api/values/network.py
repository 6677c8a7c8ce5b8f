"""By which networks and at which port other computers reach this one, and what each network is. Pure."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

MAX_CHOSEN = 16
LOWEST_PORT = 1024  # below it, only an administrator's programs may listen
InterfaceName = Annotated[str, Meta(min_length=1, max_length=128)]
ChosenInterfaces = Annotated[tuple[InterfaceName, ...], Meta(max_length=MAX_CHOSEN)]

MediumKind: TypeAlias = Literal[
    "wifi",
    "cable",
    "vpn",
    "virtual",  # of containers and virtual machines
    "",  # the system does not say
]


class Medium(Struct, frozen=True, kw_only=True):
    """What the way to a computer goes over, as far as its system says."""

    kind: MediumKind = ""
    mbit: int | None = None  # Mbit/s of a cable


class Interface(Struct, frozen=True, kw_only=True):
    """A network interface of this computer that has an address."""

    name: str  # as its system calls it: `enp3s0`, `Wi-Fi`
    medium: MediumKind = ""
    mbit: int | None = None  # Mbit/s of a cable; None: the system does not say
    addresses: tuple[str, ...] = ()  # the one that people know first
    used: bool = True


class Network(Struct, frozen=True, kw_only=True):
    """How other computers reach this one."""

    interfaces: tuple[Interface, ...] = ()  # those of the home first
    chosen: tuple[str, ...] = ()  # names; none: Potluck uses all of them
    missing: tuple[str, ...] = ()  # of `chosen`, those that are not there now
    port: int = 0  # at which it listens; 0: not yet
    fixed_port: int | None = None  # that was chosen; None: any
    port_problem: str | None = None  # why it listens at another one; a sentence


class NetworkRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/network. A field that is None leaves its value unchanged."""

    interfaces: ChosenInterfaces | None = None  # none of them: all are used
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None  # 0: any
