"""The commands that show what happens, and the one that ends it; and their help."""

from potluck.cli.commands import Add
from potluck.cli.completion import USE
from potluck.cli.options import add_json
from potluck.cli.values import number


def add_own_commands(add: Add) -> None:
    """Add them."""
    _ps(add)
    _logs(add)
    _completion(add)
    _uninstall(add)


def _ps(add: Add) -> None:
    ps = add(
        "ps",
        "running:ps",
        "Say what is loaded, on which computers, how much memory it takes there, and how many prompts\n"
        "are being answered. Starts nothing.",
        "potluck ps",
        "potluck ps --json",
    )
    add_json(ps)


def _logs(add: Add) -> None:
    logs = add(
        "logs",
        "running:logs",
        "Print the last lines of this computer's log. It never has prompts or answers in it.",
        "potluck logs",
        "potluck logs --lines 500 --follow",
        "grep WARNING $(potluck logs --path)",
    )
    lines = number(int, 0, 1_000_000)
    logs.add_argument(
        "-n", "--lines", metavar="N", type=lines, default=50, help="so many (%(default)s)"
    )
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on with what is logged, until Ctrl-C"
    )
    logs.add_argument("--path", action="store_true", help="print only where the log is")


def _completion(add: Add) -> None:
    completion = add(
        "completion",
        "completion:completion",
        "Print what lets a shell complete the commands and options of potluck with Tab.",
        *(f"potluck completion {shell:<12}({use})" for shell, use in USE.items()),
        home=False,
    )
    completion.add_argument("shell", choices=tuple(USE), metavar="SHELL", help=", ".join(USE))


def _uninstall(add: Add) -> None:
    uninstall = add(
        "uninstall",
        "uninstall:uninstall",
        "Before the program is removed: end what runs and the start with the computer, and delete what\n"
        "Potluck has written. Models, chats, settings and keys stay if you want. Uninstallers run this.",
        "potluck uninstall",
        "potluck uninstall --keep",
    )
    stays = uninstall.add_mutually_exclusive_group()
    stays.add_argument(
        "--keep", action="store_true", default=None, help="models, chats, settings and keys stay"
    )
    stays.add_argument("--delete", dest="keep", action="store_false", help="nothing stays")
