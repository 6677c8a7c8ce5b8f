"""What the node says in the pictures: of the doctor, of the engine, and of other computers."""

from msgspec.structs import replace

from potluck.api.values.doctor import Diagnosis
from potluck.api.values.engine import Engine
from potluck.cluster.runtime.sentences import SAYS
from potluck.doctor.sentences import say
from potluck.errors import EngineError
from potluck.runtime.choice import Machine, choose
from potluck.runtime.lock import Environment

SYSTEM = (
    "Potluck 0.1.0",
    "Python 3.13.5, Qt 6.11.3",
    "Debian 13, Linux 6.12, 64-bit x86",
    "RTX 3060 · 12 GB memory",
    "PyTorch 2.13.0, for NVIDIA graphics cards",
)

DIAGNOSIS = Diagnosis(
    findings=(
        say(
            "firewall_blocks",
            "sudo ufw allow 47777/tcp && sudo ufw allow 5353/udp",
            firewall="ufw",
            port="47777",
        ),
        say("network_ok", networks="192.168.1.0/24", adapters="Wi-Fi"),
        say("multicast_ok", adapters="Wi-Fi"),
        say("vpn_none"),
    )
)

WELL = Diagnosis(
    findings=(
        say("network_ok", networks="192.168.1.0/24", adapters="Ethernet"),
        say("multicast_ok", adapters="Ethernet"),
        say("firewall_lets_in", firewall="ufw"),
        say("vpn_none"),
        say("computers_connected", names="MacBook Air, Old laptop"),
        say("versions_ok", version="0.1.0"),
        say("clock_ok", names="MacBook Air"),
        say("disk_ok", free="212 GB"),
    )
)
MANY = Diagnosis(
    findings=(
        say("vpn_home", adapters="wg0", networks="192.168.1.0/24"),
        say("disk_full", free="820 MB"),
        say("network_several", networks="192.168.1.0/24, 10.0.0.0/24"),
        say(
            "multicast_nobody",
            adapters="Wi-Fi",
        ),
        say("computers_none"),
        *WELL.findings[2:3],
        *WELL.findings[5:7],
    )
)
BLOCKED = (
    "The computer cannot be reached at 192.168.1.31:47777: nothing answers there. Is it switched on,"
    " in the same network, and does its firewall let Potluck in?"
)
OTHER_VERSION = (
    "Living-room PC runs Potluck 0.1.0 (protocol 2) and Kitchen mini PC runs Potluck 0.0.9 (protocol 1),"
    " which do not understand each other. Update Potluck on Kitchen mini PC."
)
TOGETHER = (
    "Desk, Attic and Living-room PC work together: about 21.4 tokens/s for one user. A token takes 43 ms of"
    " computing and 3.7 ms on the links.\nDesk and Attic together have layers 0 to 39, each a share of every"
    " layer (50 %, 50 %): a layer takes them 0.6 ms, of which its sums take 0.1 ms, and Desk alone 1.0 ms.\n"
    "Living-room PC has layers 40 to 63: its memory holds no more."
)
WITHOUT_MAC = (
    "Living-room PC and Old laptop work together: about 4.4 tokens/s for one user. A token takes 214 ms of"
    " computing and 12 ms on the links.\nLiving-room PC has layers 0 to 51: it is the fastest, and its memory"
    " holds no more.\nOld laptop has layers 52 to 63: the faster ones are full."
)
WITHOUT_OLD = (
    "Living-room PC and MacBook Air work together: about 7.6 tokens/s for one user. A token takes 126 ms of"
    " computing and 6.0 ms on the links.\nLiving-room PC has layers 0 to 37: it is the fastest, and its memory"
    " holds no more.\nMacBook Air has layers 38 to 63: the faster one is full."
)
VIEWED = "Pictures are read by Gaming PC: a large one in 0.7 s instead of 1.9 s."
NOT_STARTED = (
    "Potluck could not be started in the background. An error of its own ended it. More is in"
    " /home/anna/.local/state/potluck."
)
MISSING = Engine(phase="missing", message="", variant="cpu", version="2.13.0", nbytes=190 * 10**6)
READY = replace(MISSING, phase="ready", message=SAYS["ready"])
FETCHING = replace(MISSING, phase="fetching", done=71 * 10**6, source="MacBook Air")


def no_engine() -> Engine:
    """Return the engine of a computer for which there is none."""
    machine = Machine(
        system="Darwin",
        processor="x86_64",
        gpus=None,
        environment=Environment(markers={}, tags=()),
    )
    try:
        choose({}, machine)
    except EngineError as error:
        return Engine(phase="none", message=error.message)
    raise AssertionError("there is an engine for every computer")
