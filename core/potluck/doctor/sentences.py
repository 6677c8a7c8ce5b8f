"""What the doctor can say: for each code its check, how bad it is, a sentence and an action."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from potluck.api.values.doctor import Check, Finding, FindingState


class Template(NamedTuple):
    """A finding whose values in braces are not filled in yet."""

    check: Check
    state: FindingState
    sentence: str
    action: str = ""


_OPEN_PORTS = (
    "Let Potluck in through the firewall of this computer: TCP port {port}, UDP port 5353."
)
_LEAVE_LAN_ALONE = (
    "Allow access to the local network (LAN) in the settings of the VPN, or switch the VPN off."
)
_BY_ADDRESS = "Add the other computer by its address."

TEMPLATES: Final[Mapping[str, Template]] = {
    # --- network
    "network_ok": Template(
        "network", "ok", "This computer is in the network {networks}, by {adapters}."
    ),
    "network_ipv6": Template(
        "network", "ok", "This computer has IPv6 addresses alone, by {adapters}. That is enough."
    ),
    "network_none": Template(
        "network",
        "problem",
        "This computer is in no network.",
        "Connect it to your home network, by cable or Wi-Fi.",
    ),
    "network_only_virtual": Template(
        "network",
        "problem",
        "This computer has only virtual networks: {adapters}. No other computer is in these.",
        "Connect it to your home network, by cable or Wi-Fi.",
    ),
    "network_self_assigned": Template(
        "network",
        "warning",
        "{adapters} has no address of a router; it gave itself {address}.",
        "Connect this computer to the network again, or start the router again. With a cable from"
        " computer to computer there is no router, and this is as it should be.",
    ),
    "network_public": Template(
        "network",
        "warning",
        "{adapters} has the public address {address}: it is connected to the internet directly.",
        "Connect this computer to your router, as the other computers are.",
    ),
    "network_several": Template(
        "network",
        "warning",
        "This computer is in several networks: {networks}.",
        "Make sure that the other computer is in one of them.",
    ),
    "network_metered": Template(
        "network",
        "warning",
        "{adapters} is marked as a connection that costs by use. Models have many GB.",
        "Use another network, or limit how fast weights are sent.",
    ),
    "network_chosen": Template(
        "network",
        "ok",
        "Potluck uses the network of {adapters} alone, as you have chosen in the settings.",
    ),
    "network_chosen_gone": Template(
        "network",
        "warning",
        "You have chosen {adapters} for Potluck, and it is not there now.",
        "Connect it again, or choose “Automatic” in the settings under Network.",
    ),
    "network_port_taken": Template(
        "network",
        "warning",
        "Port {port}, which you have chosen, was not free when Potluck started: it listens at port {used}.",
        "End the program that uses it and start Potluck again, or choose another port in the settings under"
        " Network.",
    ),
    "network_unknown": Template(
        "network", "unknown", "The networks of this computer could not be listed."
    ),
    # --- multicast
    "multicast_ok": Template(
        "multicast", "ok", "Multicast works on {adapters}: other devices were heard."
    ),
    "multicast_nobody": Template(
        "multicast",
        "unknown",
        "Multicast leaves this computer on {adapters}, and no other device has answered.",
        "If another computer with Potluck is on, the network may drop multicast. " + _BY_ADDRESS,
    ),
    "multicast_dropped": Template(
        "multicast",
        "warning",
        "The network drops multicast on {adapters}: {names} can be reached, but not heard by it.",
        "Add computers by their address, or allow multicast (mDNS) in the settings of the router.",
    ),
    "multicast_not_sent": Template(
        "multicast",
        "problem",
        "Multicast cannot be sent on {adapters}: {reason}.",
        "Let Potluck send to UDP port 5353 in the firewall of this computer. " + _BY_ADDRESS,
    ),
    "multicast_forbidden": Template(
        "multicast",
        "problem",
        "The system (macOS) does not let Potluck use the local network.",
        "Allow it in the System Settings, under Privacy & Security, Local Network.",
    ),
    "multicast_not_heard": Template(
        "multicast",
        "problem",
        "This computer does not hear multicast on {adapters}, not even its own.",
        _OPEN_PORTS,
    ),
    "multicast_unknown": Template(
        "multicast", "unknown", "Multicast could not be tried on any network."
    ),
    # --- firewall
    "firewall_reached": Template(
        "firewall", "ok", "{names} can connect to this computer (TCP port {port})."
    ),
    "firewall_not_reached": Template(
        "firewall",
        "problem",
        "{names} cannot connect to this computer (TCP port {port}).",
        _OPEN_PORTS,
    ),
    "firewall_master_silent": Template(
        "firewall",
        "problem",
        "{names} answers this computer, and does not connect to it (TCP port {port}).",
        _OPEN_PORTS,
    ),
    "firewall_blocks": Template(
        "firewall", "problem", "A rule of {firewall} keeps other computers out.", _OPEN_PORTS
    ),
    "firewall_public": Template(
        "firewall",
        "warning",
        "Windows takes this network for a public one, and keeps other computers out.",
        "Choose “Private network” for it in the Settings of Windows, under Network & internet.",
    ),
    "firewall_on": Template(
        "firewall",
        "warning",
        "{firewall} is on, and may keep other computers out. None has tried yet.",
        _OPEN_PORTS,
    ),
    "firewall_lets_in": Template("firewall", "ok", "{firewall} lets Potluck in."),
    "firewall_off": Template("firewall", "ok", "No firewall of this computer is on."),
    "firewall_unknown": Template(
        "firewall",
        "unknown",
        "Whether a firewall keeps other computers out could not be found out.",
        "If another computer does not find this one, let Potluck in: TCP port {port}, UDP port 5353.",
    ),
    # --- VPN
    "vpn_none": Template("vpn", "ok", "No VPN is on."),
    "vpn_aside": Template("vpn", "ok", "The VPN {adapters} leaves your own network alone."),
    "vpn_default": Template(
        "vpn",
        "warning",
        "The VPN {adapters} takes all that leaves your network. Some also cut off the home network.",
        _LEAVE_LAN_ALONE,
    ),
    "vpn_home": Template(
        "vpn",
        "problem",
        "The VPN {adapters} takes what is meant for your own network, {networks}.",
        _LEAVE_LAN_ALONE,
    ),
    "vpn_unknown": Template("vpn", "unknown", "Whether a VPN is on could not be found out."),
    # --- the way to other computers
    "computers_connected": Template("computers", "ok", "Connected: {names}."),
    "computers_answer": Template("computers", "ok", "{names} can be reached."),
    "computers_not_asked": Template(
        "computers",
        "unknown",
        "Potluck does not run on this computer, so it finds no other one just now.",
        "Start Potluck, and ask the doctor again.",
    ),
    "computers_none": Template(
        "computers",
        "unknown",
        "No other computer is known yet, so the way to others could not be tried.",
        "Start Potluck on the other computer. If it does not appear, add it by its address.",
    ),
    "computers_blocked": Template(
        "computers",
        "problem",
        "{names} is heard by multicast, and does not answer at {address}.",
        "Let Potluck in through the firewall of {names} (TCP port {port}); the doctor there says how."
        " If that is done, switch off “client isolation” in the settings of the Wi-Fi.",
    ),
    "computers_isolated": Template(
        "computers",
        "warning",
        "The router answers, and {names} cannot be reached: off, or kept apart by the Wi-Fi.",
        "Start Potluck there. If it runs, use the main Wi-Fi and no guest Wi-Fi, and switch off “client"
        " isolation” (AP isolation) in the settings of the Wi-Fi.",
    ),
    "computers_silent": Template(
        "computers",
        "warning",
        "{names} does not answer at {address}.",
        "Switch it on, start Potluck there, and connect it to the same network.",
    ),
    "computers_refuse": Template(
        "computers",
        "warning",
        "Potluck does not run on {names}.",
        "Start it there.",
    ),
    # --- versions
    "versions_ok": Template("versions", "ok", "This computer has Potluck {version}."),
    "versions_other": Template(
        "versions",
        "problem",
        "{names} has a version of Potluck that does not understand this one ({version}).",
        "Update Potluck on {older}.",
    ),
    "versions_restart": Template(
        "versions",
        "warning",
        "Potluck {running} runs in the background, and {version} is installed.",
        "Quit Potluck, and start it again.",
    ),
    # --- clock
    "clock_ok": Template("clock", "ok", "The clock agrees with that of {names}."),
    "clock_synchronised": Template("clock", "ok", "The clock is set by the network."),
    "clock_alone": Template(
        "clock", "unknown", "No other computer is connected to compare the clock with."
    ),
    "clock_past": Template(
        "clock",
        "problem",
        "The clock of this computer says {date}, which is before this program was made.",
        "Set the date and the time. Until then, downloads fail.",
    ),
    "clock_differs": Template(
        "clock",
        "warning",
        "The clocks of this computer and of {names} differ by {difference}.",
        "Let both set their time by the network. A wrong clock makes downloads fail.",
    ),
    # --- disk
    "disk_ok": Template("disk", "ok", "{free} of the disk are free for models."),
    "disk_low": Template(
        "disk",
        "warning",
        "Only {free} of the disk are free, and models have several GB.",
        "Delete files, or weights that nothing needs.",
    ),
    "disk_full": Template(
        "disk",
        "problem",
        "The disk is full: {free} are free, and Potluck leaves 1.1 GB to the system.",
        "Delete files, or weights that nothing needs.",
    ),
    "disk_not_written": Template(
        "disk",
        "problem",
        "Nothing can be written to {folder}: {reason}.",
        "Make it yours and writable, or make room on its disk.",
    ),
    "disk_quota": Template(
        "disk",
        "warning",
        "The weights kept for other computers take {used} of the {limit} that they may take.",
        "Delete those that nothing needs, or raise “store_limit” in settings.json.",
    ),
    "disk_unknown": Template("disk", "unknown", "The disk could not be looked at."),
    # --- identity
    "identity_ok": Template("identity", "ok", "The keys of this computer are private."),
    "identity_open": Template(
        "identity",
        "problem",
        "Other users of this computer may read its keys, in {folder}.",
        "Take away their rights.",
    ),
    # --- engine
    "engine_ok": Template("engine", "ok", "This computer has its engine, PyTorch."),
    "engine_comes": Template(
        "engine",
        "warning",
        "The engine, PyTorch, is being installed. Until then, this computer computes nothing.",
        "Wait until it is there; potluck engine says how far it is.",
    ),
    "engine_missing": Template(
        "engine",
        "warning",
        "This computer has no engine, PyTorch, and computes nothing.",
        "Install it: from a computer of your home that has it, or from the Internet.",
    ),
    "engine_none": Template(
        "engine",
        "warning",
        "There is no engine, PyTorch, for this computer, and it computes nothing.",
        "Use the models of your other computers from here; potluck engine says why there is none.",
    ),
}


def say(code: str, command: str = "", **data: str) -> Finding:
    """Fill in a template with what its sentence and its action name."""
    template = TEMPLATES[code]
    return Finding(
        check=template.check,
        state=template.state,
        code=code,
        sentence=template.sentence.format(**data),
        action=template.action.format(**data),
        command=command,
        data=data,
    )
