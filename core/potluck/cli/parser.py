"""The command line of `potluck`, and its help."""

import argparse
import re
import sys
from functools import partial
from typing import NoReturn

from potluck import __version__
from potluck.cli import WINDOW
from potluck.cli.completion import USE
from potluck.cli.model_commands import add_key_commands, add_library_commands, add_upkeep_commands
from potluck.cli.options import (
    add_bench,
    add_home,
    add_json,
    add_model,
    add_sampling,
    add_worker,
)
from potluck.cli.own_commands import add_own_commands
from potluck.cli.values import name, number, size
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
  doctor                  what keeps computers from finding each other, and what to do
  engine                  PyTorch, which computes: install, stop, remove
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
    _add_computer_commands(commands)
    _add_model_commands(commands)
    _add_look_commands(commands)
    return parser


_Commands = argparse._SubParsersAction


def _add_computer_commands(commands: "_Commands[Parser]") -> None:
    worker = _command(
        commands,
        "worker",
        "worker:worker",
        "Lend this computer's memory and processors to another one, until Ctrl-C.",
        "potluck worker",
        "potluck worker --join TOKEN --memory 8GB     (TOKEN: from `potluck invite` on the other)",
        "POTLUCK_CPUS=8,8 potluck worker     (two NUMA nodes: cpu:0 and cpu:1, 8 threads each)",
    )
    add_worker(worker)

    pause = _command(
        commands,
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
        _command(commands, word, f"worker:{word}", description, f"potluck {word}")

    invite = _command(
        commands,
        "invite",
        "computers:invite",
        "Print a token that lets one computer join this one; for machines without a screen.",
        "potluck invite",
        "ssh attic potluck worker --join $(potluck invite)",
    )
    add_json(invite)

    pair = _command(
        commands,
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

    unpair = _command(
        commands,
        "unpair",
        "computers:unpair",
        "Let a computer in no longer. Takes effect at once.",
        "potluck unpair laptop",
    )
    unpair.add_argument("target", metavar="NAME", help="its name, or its id")

    computer = _command(
        commands,
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

    main = _command(
        commands,
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

    devices = _command(
        commands,
        "devices",
        "computers:devices",
        "List the computers, what they lend, and how fast the way to them is.",
        "potluck devices",
        "potluck devices --json",
    )
    add_json(devices)

    doctor = _command(
        commands,
        "doctor",
        "doctor:doctor",
        "Look at network, multicast, firewall, VPN, versions, clock and disk of this computer, and say\n"
        "what keeps others from it and what to do. Changes nothing. Exit status 1: there is a problem.",
        "potluck doctor",
    )
    add_json(doctor)

    engine = _command(
        commands,
        "engine",
        "engine:engine",
        "Install, look at or remove PyTorch, which computes. It comes from a computer of your home that has it,\n"
        "else from the Internet. Where Potluck's own Python has it, there is nothing to do.",
        "potluck engine install",
        "potluck engine install --from /media/stick     (a folder of wheels)",
    )
    actions = ("install", "status", "stop", "remove")
    engine.add_argument(
        "action", nargs="?", choices=actions, default="status", help="(%(default)s)"
    )
    engine.add_argument("--from", dest="wheels", metavar="FOLDER", help="take these wheels")
    add_json(engine)

    update = _command(
        commands,
        "update",
        "update:update",
        "Look for a newer Potluck, install it on this computer and tell those of your home, or go back to the\n"
        "version before. It is verified, comes from your home where that has it, and replaces this one when\n"
        "nothing is answered. Exit status 1: that failed, or Potluck cannot be updated from here.",
        "potluck update check",
        "potluck update install",
        "potluck update --automatic on     (look each day, and follow the main computer)",
    )
    steps = ("check", "install", "stop", "back", "status")
    update.add_argument("action", nargs="?", choices=steps, default="status", help="(%(default)s)")
    update.add_argument(
        "--automatic", choices=("on", "off"), help="whether Potluck looks by itself (off)"
    )
    add_json(update)


def _add_model_commands(commands: "_Commands[Parser]") -> None:
    chat = _command(
        commands,
        "chat",
        "chat:chat",
        "Ask a model. Without a prompt, talk with it; without --model, ask the model chosen last,\n"
        "which is at first the guide to Potluck.",
        'potluck chat "What is a worker?"',
        "potluck chat --model ~/models/Qwen3-8B --workers 2",
        'potluck chat --image photo.jpg "What is this?"',
        'git diff | potluck chat "Review this"     (what comes through a pipe follows the prompt)',
    )
    chat.add_argument("prompt", nargs="*", metavar="PROMPT", help="what to ask")
    chat.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="a picture to ask about (PNG, JPEG, WebP or GIF); several times for several pictures",
    )
    add_model(chat)
    add_sampling(chat)
    add_json(chat)

    plan = _command(
        commands,
        "plan",
        "plan:plan",
        "Say which computer would compute which layers, how fast, and why; loads nothing.",
        "potluck plan --model ~/models/Qwen3-8B",
        "potluck plan --layers desktop=20,laptop=12",
    )
    add_model(plan)
    add_json(plan)

    bench = _command(
        commands,
        "bench",
        "bench:bench",
        "Measure how fast a model runs on these computers, and how fast it could at best: the floor\n"
        "is what a token takes if nothing is done but reading the weights. Without --model, a shape\n"
        "with random weights, which every computer makes for itself: nothing is sent or downloaded.\n"
        "What was loaded before is unloaded for it, and loaded again by the next prompt.",
        "potluck bench",
        "potluck bench --shape llama-8b --scheme int4 --workers 2",
        "potluck bench --model ~/models/Qwen3-8B --layers desktop=20,laptop=16 --json",
    )
    add_model(bench, guide=False)
    add_bench(bench)
    add_json(bench)

    serve = _command(
        commands,
        "serve",
        "serve:serve",
        "Load a model and answer other programs as OpenAI's API does, until Ctrl-C.",
        "potluck serve --model ~/models/Qwen3-8B --port 8000",
        "potluck serve --host 0.0.0.0 --tls     (for other computers too; first: potluck keys add NAME)",
    )
    add_model(serve)
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (%(default)s)")
    serve.add_argument("--port", type=number(int, 0, 65535), default=8000, help="(%(default)s)")
    serve.add_argument("--key", help="one key for all programs, beside those of `potluck keys`")
    serve.add_argument(
        "--tls",
        action="store_true",
        help="encrypt; programs trust the file that `potluck keys authority` prints",
    )
    serve.add_argument(
        "--fetch-pictures",
        action="store_true",
        help="get pictures that programs name by an address on the Internet (never one of your home)",
    )
    serve.add_argument(
        "--origin", action="append", default=[], help="let web pages of this origin in; repeatable"
    )

    keys = _command(
        commands,
        "keys",
        "keys:list_keys",
        "List the keys of programs that may use `potluck serve`. Each program has its own, which is\n"
        "printed once, and may be taken back at any time.",
        "potluck keys add open-webui",
        "potluck keys add prometheus --may metrics",
        "potluck keys revoke open-webui",
    )
    add_json(keys)
    add_key_commands(partial(_command, keys.add_subparsers(metavar="", prog="potluck keys")))

    models = _command(
        commands,
        "models",
        "library:models",
        "List the models on this computer: used before, in the Hugging Face cache, or in the stores\n"
        "of Ollama and LM Studio. Or find and download others, or check the weights on its disk.",
        "potluck models",
        "potluck models search        (what Potluck recommends for your computers)",
        "potluck models pull Qwen/Qwen3-8B-GGUF",
        "potluck models verify        (are all weights what they were?)",
        "potluck models prune         (delete stored weights that nothing needs)",
        "potluck models limit 200     (send weights at 200 Mbit/s at most)",
        "potluck models limit --downloads 5     (download at 5 MB/s at most)",
    )
    add_json(models)
    more = models.add_subparsers(metavar="", prog="potluck models")
    add = partial(_command, more)
    add_library_commands(add)
    add_upkeep_commands(add)

    demo = _command(
        commands,
        "demo",
        "demo:demo",
        "Show everything on this one computer: three nodes with folders of their own find each\n"
        "other, pair, share out a model, and answer. Your own node and settings stay untouched.",
        "potluck demo",
        "potluck demo --model ~/models/Qwen3-0.6B --json",
        home=False,
    )
    demo.add_argument("prompt", nargs="*", metavar="PROMPT", help="what to ask")
    add_model(demo)
    add_sampling(demo)
    add_json(demo)


def _add_look_commands(commands: "_Commands[Parser]") -> None:
    ps = _command(
        commands,
        "ps",
        "running:ps",
        "Say what is loaded, on which computers, how much memory it takes there, and how many prompts\n"
        "are being answered. Starts nothing.",
        "potluck ps",
        "potluck ps --json",
    )
    add_json(ps)

    logs = _command(
        commands,
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

    completion = _command(
        commands,
        "completion",
        "completion:completion",
        "Print what lets a shell complete the commands and options of potluck with Tab.",
        *(f"potluck completion {shell:<12}({use})" for shell, use in USE.items()),
        home=False,
    )
    completion.add_argument("shell", choices=tuple(USE), metavar="SHELL", help=", ".join(USE))

    add_own_commands(partial(_command, commands))
    _add_hidden_commands(commands)


def _add_hidden_commands(commands: "_Commands[Parser]") -> None:
    """Add what only other programs run."""
    node = _command(
        commands, "node", "window:node", "Run the node of this computer in the foreground."
    )
    node.add_argument("--name", type=name, help="what others see this computer as")
    complete = _command(
        commands, "complete", "completion:complete", "Print the words that may follow.", home=False
    )
    complete.add_argument("words", nargs="*")


def _command(
    commands: "_Commands[Parser]",
    name: str,
    run: str,
    description: str,
    *examples: str,
    home: bool = True,
) -> Parser:
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
