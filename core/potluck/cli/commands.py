"""How a command of `potluck` is added to its command line, and how errors in it are said."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from potluck.cli.options import add_home


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as one sentence with a hint at the help."""

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"argument : invalid choice: '(.*?)' \(", message):
            message = f"there is no command “{unknown[1]}”"
        sentence = message[:1].upper() + message[1:].rstrip(".")
        self.exit(2, f"potluck: {sentence}. See: {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program. The message may have words that a stranger wrote, such as the name of a file."""
        if message:
            from potluck.cli.printing import say  # imported here: most commands have no message

            say(message, end="")
        sys.exit(status)


Commands = argparse._SubParsersAction

Add: TypeAlias = Callable[..., Parser]
"""Adds a command: its name, the function that runs it, what it does, and examples."""


def add_command(
    commands: "Commands[Parser]",
    name: str,
    run: str,
    description: str,
    *examples: str,
    home: bool = True,
) -> Parser:
    """Add a command.

    Args:
        commands: which it is one of.
        name: what is typed.
        run: the function that runs it, as `module:function` of this package.
        description: what its help begins with.
        examples: of its help.
        home: whether it has the option `--home`.
    """
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    parser = commands.add_parser(
        name,
        description=description,
        epilog=epilog if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=f"potluck.cli.{run}")
    if home:
        add_home(parser)
    return parser
