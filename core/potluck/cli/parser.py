"""The command line of `potluck`, and its help."""

import argparse
from functools import partial

from potluck import __version__
from potluck.cli import WINDOW
from potluck.cli.commands import Add, Parser, add_command
from potluck.cli.computer_commands import add_computer_commands
from potluck.cli.model_commands import add_model_commands
from potluck.cli.options import add_home
from potluck.cli.own_commands import add_own_commands
from potluck.cli.values import name
from potluck.cli.waits import Waits

OVERVIEW = """\
Pool the computers of your home to run a language model none of them could run alone.

The commands that most people need:
  potluck                               open the window: add computers, choose a model, chat
  potluck worker                        on each other computer: lend it, until Ctrl-C
  potluck pair laptop                   on this one: add it; both screens show the same six digits
  potluck models pull Qwen/Qwen3-8B-GGUF     download a model; `potluck models search` finds others
  potluck chat "What is a worker?"      ask; without a prompt, hold a conversation

Commands for your computers:
  worker                  lend this computer to another one, until Ctrl-C
  pause [hour|tomorrow]   lend nothing for a while
  resume                  end that
  free                    give back at once what this computer lends
  invite                  print a token that lets one computer join this one
  pair [NAME|ADDRESS]     add a computer: both screens show the same six digits
  unpair NAME             let a computer in no longer
  computer NAME           rename, pause or limit a computer, or test the link to it
  make-main NAME          make it the main computer; this one and the others help it then
  devices                 the computers, what they have and how fast they are linked
  network                 by which networks and port the others reach this one, and the choice of them
  doctor                  what keeps computers from finding each other, and what to do
  engine                  PyTorch, which computes: install, repair, remove
  update                  a newer Potluck: look for it, install it, go back

Commands for models:
  chat [PROMPT]           ask once, or talk; what comes through a pipe is a prompt, too
  models                  the models on this computer; list, search, pull, rm, verify, prune
  serve                   an OpenAI-compatible server for other programs
  keys                    the keys of programs that may use it; add, revoke
  plan                    which computer would compute which layers, and how fast
  bench                   how fast a model runs, and how fast it could at best
  demo                    three nodes on this computer: pair, plan, stream and chat

Commands that show what happens:
  ps                      what is loaded, where, how much memory it takes, how many are answered
  logs                    the last lines of the log, and those that come (--follow)
  completion SHELL        let bash, zsh, fish or PowerShell complete these commands
  uninstall               end everything, and ask which of your files shall stay

First steps, with two computers on one network:
  on the second:   potluck worker
  on the first:    potluck pair            then: potluck pair NAME
                   potluck chat "How do I add another computer?"

Each command has examples: potluck COMMAND --help
"""


def make_parser() -> Parser:
    """Return the parser of the whole command line; `run` of its result names a function."""
    parser = Parser(
        prog="potluck",
        description=OVERVIEW,
        usage="potluck [COMMAND] [OPTIONS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"potluck {__version__}")
    parser.set_defaults(**WINDOW, waits=Waits(), parser=parser)  # `complete` reads the parser
    add_home(parser)
    commands = parser.add_subparsers(metavar="", prog="potluck", help=argparse.SUPPRESS)
    add = partial(add_command, commands)
    add_computer_commands(add)
    add_model_commands(add)
    add_own_commands(add)
    _add_hidden_commands(add)
    return parser


def _add_hidden_commands(add: Add) -> None:
    """Add what only other programs run."""
    node = add("node", "window:node", "Run the node of this computer in the foreground.")
    node.add_argument("--name", type=name, help="what others see this computer as")
    complete = add(
        "complete", "completion:complete", "Print the words that may follow.", home=False
    )
    complete.add_argument("words", nargs="*")
