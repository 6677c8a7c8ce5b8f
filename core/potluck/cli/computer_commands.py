"""The commands for the computers of a home, and their help."""

from potluck.cli.commands import Add
from potluck.cli.options import add_json, add_worker
from potluck.cli.values import interfaces, port_or_auto, size


def add_computer_commands(add: Add) -> None:
    """Add them, in the order in which the help of `potluck` names them."""
    _worker(add)
    _pause(add)
    _invite(add)
    _pair(add)
    _unpair(add)
    _computer(add)
    _make_main(add)
    _devices(add)
    _network(add)
    _doctor(add)
    _engine(add)
    _update(add)


def _worker(add: Add) -> None:
    worker = add(
        "worker",
        "worker:worker",
        "Lend this computer's memory and processors to another one, until Ctrl-C.",
        "potluck worker",
        "potluck worker --join TOKEN --memory 8GB     (TOKEN: from `potluck invite` on the other)",
        "POTLUCK_CPUS=8,8 potluck worker     (two NUMA nodes: cpu:0 and cpu:1, 8 threads each)",
    )
    add_worker(worker)


def _pause(add: Add) -> None:
    pause = add(
        "pause",
        "worker:pause",
        "Lend nothing of this computer for a while. The others go on without it.",
        "potluck pause                (until `potluck resume`)",
        "potluck pause hour",
        "potluck pause tomorrow       (until 6 o'clock in the morning)",
    )
    lengths = ("hour", "tomorrow", "resume")
    pause.add_argument("length", nargs="?", choices=lengths, default="resume", help="(%(default)s)")
    for word, description in (
        ("resume", "End the pause of this computer: it is lent again."),
        ("free", "Give the memory that this computer lends back at once, and pause for an hour."),
    ):
        add(word, f"worker:{word}", description, f"potluck {word}")


def _invite(add: Add) -> None:
    invite = add(
        "invite",
        "computers:invite",
        "Print a token that lets one computer join this one; for machines without a screen.",
        "potluck invite",
        "ssh attic potluck worker --join $(potluck invite)",
    )
    add_json(invite)


def _pair(add: Add) -> None:
    pair = add(
        "pair",
        "computers:pair",
        "Add a computer. Both screens show six digits; if they are the same, say yes on both.",
        "potluck pair                 (lists what can be added)",
        "potluck pair laptop",
        "potluck pair 192.168.1.20    (where computers do not find each other)",
    )
    pair.add_argument("target", nargs="?", metavar="NAME|ADDRESS", help="which computer")
    pair.add_argument(
        "--yes", action="store_true", help="do not ask; only where you see both screens"
    )
    add_json(pair)


def _unpair(add: Add) -> None:
    unpair = add(
        "unpair",
        "computers:unpair",
        "Let a computer in no longer. Takes effect at once.",
        "potluck unpair laptop",
    )
    unpair.add_argument("target", metavar="NAME", help="its name, or its id")


def _computer(add: Add) -> None:
    computer = add(
        "computer",
        "computers:computer",
        "Rename, pause or limit a computer of this home, or test the link to it.",
        "potluck computer laptop --rename attic",
        "potluck computer laptop --memory 8GB --test",
    )
    computer.add_argument("target", metavar="NAME", help="its name, or its id")
    computer.add_argument("--rename", metavar="NAME", help='"" gives it its own name again')
    pause = computer.add_mutually_exclusive_group()
    pause.add_argument(
        "--pause", dest="paused", action="store_true", default=None, help="use it in no plan"
    )
    pause.add_argument("--resume", dest="paused", action="store_false", help="use it again")
    computer.add_argument(
        "--memory", type=size, metavar="SIZE", help="use so much of it at most; 0: all of it"
    )
    computer.add_argument("--test", action="store_true", help="measure the link to it now")


def _make_main(add: Add) -> None:
    main = add(
        "make-main",
        "computers:make_main",
        "Make a computer the main one of the home. This one and the other helpers help it from then on.\n"
        "Models and conversations of this computer stay on it.",
        "potluck make-main attic",
    )
    main.add_argument("target", metavar="NAME", help="its name, or its id")
    main.add_argument("--yes", action="store_true", help="do not ask")
    main.add_argument(
        "--stop-answers", action="store_true", help="stop answers that are under way here"
    )
    add_json(main)


def _devices(add: Add) -> None:
    devices = add(
        "devices",
        "computers:devices",
        "List the computers, what they lend, and how fast the way to them is; or turn a GPU of this one off.",
        "potluck devices",
        "potluck devices --json",
        'potluck devices --off "RTX 4070"     (models do not use this GPU, and nothing touches it)',
    )
    devices.add_argument("--off", metavar="GPU", help="keep a GPU of this computer from models")
    devices.add_argument("--on", metavar="GPU", help="use it for models again")
    add_json(devices)


def _network(add: Add) -> None:
    network = add(
        "network",
        "network:network",
        "List the networks of this computer, or choose those that Potluck uses, and its port.\n"
        "It chooses both by itself; that is right for most homes, also with a VPN or Docker.",
        "potluck network",
        "potluck network --use enp3s0",
        "potluck network --use auto --port 48000",
    )
    network.add_argument(
        "--use", metavar="NAME,…", type=interfaces, help="use these alone; auto: all of them"
    )
    network.add_argument(
        "--port",
        type=port_or_auto,
        metavar="N",
        help="listen for other computers at this port; auto: any",
    )
    add_json(network)


def _doctor(add: Add) -> None:
    doctor = add(
        "doctor",
        "doctor:doctor",
        "Look at network, multicast, firewall, VPN, versions, clock and disk of this computer, and say\n"
        "what keeps others from it and what to do. Changes nothing. Exit status 1: there is a problem.",
        "potluck doctor",
    )
    add_json(doctor)


def _engine(add: Add) -> None:
    engine = add(
        "engine",
        "engine:engine",
        "Install, look at, repair or remove PyTorch, which computes. It comes from a computer of your home that has it,\n"
        "else from the Internet. Where Potluck's own Python has it, there is nothing to do.",
        "potluck engine install",
        "potluck engine install --from /media/stick     (a folder of wheels)",
    )
    actions = ("install", "repair", "status", "stop", "remove")
    engine.add_argument(
        "action", nargs="?", choices=actions, default="status", help="(%(default)s)"
    )
    engine.add_argument("--from", dest="wheels", metavar="FOLDER", help="take these wheels")
    add_json(engine)


def _update(add: Add) -> None:
    update = add(
        "update",
        "update:update",
        "Look for a newer Potluck, install it on this computer and tell those of your home, or go back to the\n"
        "version before. It is verified, comes from your home where that has it, and replaces this one when\n"
        "nothing is answered. Exit status 1: that failed, or Potluck cannot be updated from here.",
        "potluck update check",
        "potluck update install",
        "potluck update --automatic on     (once a day, and when the main computer does)",
    )
    steps = ("check", "install", "stop", "back", "status")
    update.add_argument("action", nargs="?", choices=steps, default="status", help="(%(default)s)")
    update.add_argument(
        "--automatic", choices=("on", "off"), help="whether Potluck looks by itself (off)"
    )
    add_json(update)
