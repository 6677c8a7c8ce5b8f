"""What was seen of this computer and its network. A fact that could not be seen is None."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from potluck.api.values.network import Network
from potluck.wire.messages import Address

AdapterKind: TypeAlias = Literal["real", "virtual", "tunnel", "loopback"]
EngineSeen: TypeAlias = Literal["there", "comes", "missing", "none"]
Answer: TypeAlias = Literal[
    "open",  # something listens there
    "refused",  # the computer is there, and nothing listens
    "silent",  # nothing came back in time: it is off, or something drops packets
    "unreachable",  # the system says that no computer is there, or no way leads there
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A network interface of this computer."""

    name: str
    kind: AdapterKind
    is_up: bool
    networks: tuple[str, ...] = ()  # its addresses with their prefixes: 192.168.1.20/24
    is_metered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastSeen:
    """What became of a multicast question on one interface."""

    adapter: str
    address: str  # of this computer there
    error: str = ""  # why it could not be sent, as the end of a sentence
    is_forbidden: bool = False  # macOS asks its user before a program may use the network
    heard_itself: bool = False
    heard: tuple[str, ...] = ()  # addresses of other devices that said something


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallSeen:
    """What the system says about its own firewall."""

    name: str  # ufw, firewalld, nftables, iptables, Windows Firewall, the firewall of macOS
    is_on: bool | None
    lets_in: bool | None = None  # whether a rule lets Potluck in (True) or blocks it (False)
    is_public: bool = False  # Windows takes this network for one of strangers


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """From which own address packets would leave; None: no way leads there."""

    default: str | None  # to anywhere outside
    home: dict[str, str | None]  # to the network of each own address, by this address


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The router of this network."""

    address: str
    answers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another computer that this one knows: paired, found, or typed by its address."""

    name: str
    addresses: tuple[Address, ...] = ()
    answer: Answer | None = None  # the best one of its addresses; None: not asked
    is_found: bool = False  # by multicast, just now
    is_connected: bool = False
    is_master: bool = False  # this computer helps it
    protocol: int | None = None  # that it announces
    mismatch: str = ""  # a sentence: the two programs do not understand each other
    clock_ahead_s: float | None = None  # its clock, compared with this one's
    reaches_us: bool | None = None  # whether it could connect to this computer just now


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the node of this computer says of itself."""

    version: str
    protocols: tuple[int, ...]
    helped: tuple[str, ...] = ()  # names of the main computers that are connected to it now
    engine: EngineSeen | None = None  # None: not looked at
    network: Network | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One folder of Potluck, and the disk that it is on."""

    folder: str
    holds: Literal["settings", "identity", "weights", "logs"]
    free: int  # bytes
    error: str = ""  # why nothing can be written there, as the end of a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The weights and caches that this computer keeps for others."""

    used: int  # bytes
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Who may read the keys of this computer."""

    folder: str
    is_private: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was seen. `peers` is empty where none is known."""

    version: str  # of the program that looks
    now: float  # Unix time, by this computer's clock
    port: int  # at which other computers reach this one
    running: Running | None = None  # None: no node runs
    adapters: tuple[Adapter, ...] | None = None
    routes: Routes | None = None
    multicast: tuple[MulticastSeen, ...] | None = None
    firewall: FirewallSeen | None = None
    gateway: Gateway | None = None
    peers: tuple[Peer, ...] = ()
    is_clock_synchronised: bool | None = None
    disks: tuple[Disk, ...] | None = None
    store: Store | None = None
    secrets: Secrets | None = None
