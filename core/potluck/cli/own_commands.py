"""The command about this installation of Potluck itself, and its options."""

from potluck.cli.model_commands import Add


def add_own_commands(add: Add) -> None:
    """Add `uninstall`."""
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
