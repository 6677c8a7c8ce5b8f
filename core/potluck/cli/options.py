"""Options that several commands have."""

import argparse
from pathlib import Path
from typing import TypeAlias, get_args

from potluck.cli.values import counts, layers, name, names, number, size
from potluck.model.schemes import Cache, Scheme
from potluck.model.shapes.table import DEFAULT_SHAPE, SHAPES

_Options: TypeAlias = argparse._ActionsContainer  # a command, or a group of its options


def add_home(parser: argparse.ArgumentParser) -> None:
    """Add --home, whose node the command uses."""
    parser.add_argument(
        "--home",
        metavar="DIR",
        type=Path,
        # The default of a command would override a --home in front of the command.
        default=argparse.SUPPRESS,
        help="keep everything below DIR: another node, apart from yours (also POTLUCK_HOME)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")


def add_count(
    parser: _Options,
    option: str,
    most: int,
    help: str,  # noqa: A002 - as argparse calls it
    *,
    least: int = 1,
    default: int | None = None,
) -> None:
    """Add an option that takes a whole number from `least` to `most`."""
    kind = number(int, least, most)
    parser.add_argument(option, metavar="N", type=kind, default=default, help=help)


def add_threads(parser: _Options) -> None:
    """Add --threads."""
    add_count(parser, "--threads", 1024, "compute with so many threads (one for each core)")


def add_worker(parser: argparse.ArgumentParser) -> None:
    """Add what a worker lends, to whom, and what it is called."""
    parser.add_argument("--join", metavar="TOKEN", help="join the home that this token is from")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=size,
        help="lend at most this of the RAM, and of each GPU: 8GB",
    )
    add_threads(parser)
    parser.add_argument(
        "--start-with-computer",
        dest="start",
        choices=("on", "off"),
        help="have the system start it from now on, or not; lends nothing yet",
    )
    parser.add_argument("--name", type=name, help="what others see this computer as")


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, and how often."""
    group = parser.add_argument_group("the bench")
    prefilled = "tokens of the prompt that is prefilled (%(default)s)"
    add_count(group, "--prompt", 1 << 20, prefilled, default=512)
    decoded = "tokens that are decoded after a short prompt (%(default)s)"
    add_count(group, "--tokens", 1 << 16, decoded, default=64)
    add_count(group, "--repeat", 1000, "how often both are measured (%(default)s)", default=5)
    deep = "then measure both again after so many cached tokens, such as 4096"
    add_count(group, "--depth", 1 << 20, deep, least=0, default=0)
    group.add_argument(
        "--sessions",
        metavar="N,…",
        type=counts,
        default=(),
        help="then let so many conversations decode at the same time, such as 1,8",
    )
    add_threads(group)


def add_model(parser: argparse.ArgumentParser, *, guide: bool = True) -> None:
    """Add which model, and how it is held and shared out. `guide`: without it, it is the one chosen last, at first the guide."""
    group = parser.add_argument_group("the model")
    if guide:
        group.add_argument(
            "--model",
            metavar="DIR",
            help="folder, GGUF file or name (the one chosen last; at first the guide)",
        )
    else:
        which = group.add_mutually_exclusive_group()
        which.add_argument("--model", metavar="DIR", help="folder, GGUF file or Hugging Face id")
        which.add_argument(
            "--shape",
            choices=SHAPES,
            metavar="NAME",
            help=f"random weights of this shape: {', '.join(SHAPES)} ({DEFAULT_SHAPE})",
        )
    group.add_argument(
        "--scheme",
        choices=(*get_args(Scheme), "auto"),
        default="auto",
        help="how its weights are held (auto: the best quality that fits)",
    )
    group.add_argument(
        "--cache",
        choices=get_args(Cache),
        default="full",
        help="how what was read is kept on processors: in full, or in 8 bits (longer conversations)",
    )
    group.add_argument(
        "--layers",
        metavar="NAME=N,…",
        type=layers,
        help="share out by hand, in this order; NAME is its best device, NAME/cuda:1 another, and"
        " NAME+NAME are devices that compute their layers together",
    )
    group.add_argument(
        "--prefill",
        metavar="NAME,…",
        type=names,
        default=(),
        help="computers that read long prompts for the others, each set with a copy of the model",
    )
    group.add_argument(
        "--pictures",
        metavar="NAME",
        help="the computer that reads pictures: the first one of the others, or one without layers",
    )
    times = "hold the model N times, each on computers of its own, for several answers at once (1)"
    add_count(group, "--replicas", 16, times, default=1)
    wait = "wait until N other computers take part"
    add_count(group, "--workers", 64, wait, least=0, default=0)
    add_count(group, "--context", 1 << 20, "how many tokens a conversation may have")
    several = "plan for so many answers at once, and not for one (1)"
    add_count(group, "--users", 32, several, default=1)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add how an answer is chosen, and where it ends."""
    group = parser.add_argument_group("the answer")
    group.add_argument(
        "--temperature",
        metavar="T",
        type=number(float, 0, 100),
        help="0: always the most likely word; higher: more varied (what the model recommends)",
    )
    group.add_argument(
        "--top-p", metavar="P", type=number(float, 1e-6, 1), help="of the likeliest words only"
    )
    add_count(group, "--max-tokens", 1 << 20, "end after so many tokens")
    add_count(group, "--seed", (1 << 63) - 1, "the same answer again", least=0)
