"""Numbers and states in the words of the window. Pure.

The simple window says "computer", never node or worker. It uses sentence case and SI units, but no
thin space, since not every font has one.
"""

import html
import re
from collections.abc import Sequence

from potluck.api.values.network import Medium, MediumKind
from potluck.api.values.schema import ClusterState, Computer, ModelState, Transfer
from potluck.api.values.vitals import Vitals

GUIDE = "Potluck guide"
_SLOW_LINK = 12.5e6  # bytes per second (100 Mbit/s); a slower link needs minutes per GB of a model
_FULL = 0.98  # of a battery; one that is plugged in is kept there
_NAMED = 2  # so many computers are named beside a model, more are counted
_LONG_WORD = re.compile(r"\S{25,}")  # no word of a language of the window is as long
_SEAM = re.compile(r"(?<=\w[/\\_-])(?=\w)")  # in a path or an address, where it may be broken
_PIECE = re.compile(r".{4}")
_LONG_PART = 25  # characters
_BREAK = "\u200b"  # a space without width
_UNITS = r"(?:°C|[kMG]?B|[kMG]B/s|[MG]bit/s|%|s|ms|min|h|tokens?/s|Token/s|tokens?|Token)(?![\w/])"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?={_UNITS})")
_BEFORE_DOT = re.compile(r" (?=·)")
_RATE = re.compile(r"(?<=\w)/(?=s\b)")
_ROOT = re.compile(r"(?<![\w:/\\.])[/\\](?=\w)")  # the sign with which a path begins
_ITEM = 17  # characters of what stands between two `·`; a longer one may have to be broken
_NO_BREAK = "\u00a0"  # a space at which no line ends
_JOINER = "\u2060"  # without width; no line ends at it
_MEDIA = {"wifi": "Wi-Fi", "cable": "Cable", "vpn": "VPN"}
_PRECISIONS = {
    "f32": "32 bits",
    "bf16": "16 bits",
    "f16": "16 bits",
    "int8": "8 bits",
    "int4-offset": "4 bits",
    "int4-head8": "4 bits",
    "int4": "4 bits",
}


def no_node(*, has_failed: bool) -> str:
    """Return what is said in place of the state of a node: it starts, or could not be started."""
    return "Potluck is not running" if has_failed else "Starting…"


def gigabytes(count: float) -> str:
    """Return a size without its unit, as short as possible: `9.8`, `12`."""
    value = count / 1e9
    return f"{value:.0f}" if value >= 99.95 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def size(count: float) -> str:
    """Return a size with its unit: `820 MB`, `5.2 GB`, `12 GB`."""
    if count < 999.5e3:
        return f"{count / 1e3:.0f} kB"
    if count < 999.5e6:
        return f"{count / 1e6:.0f} MB"
    return f"{gigabytes(count)} GB"


def rate(bytes_per_s: float) -> str:
    """Return a link's rate in bits, as networks are sold: `420 Mbit/s`, `1 Gbit/s`."""
    bits = bytes_per_s * 8
    if bits >= 999.5e6:
        value = bits / 1e9
        return f"{value:.0f} Gbit/s" if abs(value - round(value)) < 0.06 else f"{value:.1f} Gbit/s"
    return f"{bits / 1e6:.0f} Mbit/s"


def medium(kind: MediumKind) -> str:
    """Return what a network goes over; nothing if the system does not say, or if it is a virtual one."""
    return _MEDIA.get(kind, "")


def duration(seconds: float) -> str:
    """Return the remaining time: `40 s`, `3 min`, `1 h`, `1 h 5 min`."""
    if seconds < 59.5:
        return f"{max(seconds, 1):.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(([f"{hours} h"] if hours else []) + ([f"{minutes} min"] if minutes else []))


def tokens_per_s(value: float) -> str:
    """Return a model's speed: `7.9 tokens/s`."""
    return f"{value:.0f} tokens/s" if value >= 99.5 else f"{value:.1f} tokens/s"


def thousands(count: int) -> str:
    """Return a number, such as that of tokens: `850`, `3.1k`, `32k`, `1.4M`."""
    if count < 1000:
        return str(count)
    if count % 1024 == 0:
        return f"{count // 1024}k"  # contexts are powers of two, and are named so
    if count >= 999_500:
        return f"{count / 1e6:.1f}M"
    value = count / 1000
    return f"{value:.0f}k" if value >= 9.95 or value == round(value) else f"{value:.1f}k"


def percent(fraction: float) -> str:
    """Return a share: `62 %`."""
    return f"{min(max(fraction, 0), 1) * 100:.0f} %"


def precision(scheme: str) -> str:
    """Return how precisely a model's weights are held; the name of a scheme that is not known here."""
    return _PRECISIONS.get(scheme, scheme)


def plural(count: int, one: str, many: str) -> str:
    """Return a count with its noun: `1 computer`, `3 computers`."""
    return f"{count} {one if count == 1 else many}"


def listing(names: Sequence[str]) -> str:
    """Return a list as text: `A`, `A and B`, `A, B and C`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def without_mnemonic(text: str) -> str:
    """Escape a name for a button or a menu, where `&` would mark a keyboard shortcut."""
    return text.replace("&", "&&")


def breakable(text: str) -> str:
    """Return a text whose longest words, such as paths, may go on in the next line of a label."""
    return _LONG_WORD.sub(lambda word: _broken(word[0]), text)


def _broken(word: str) -> str:
    """Let lines end after the signs of a path; anywhere in a part of it that is long without any."""
    parts = _SEAM.split(word)
    return _BREAK.join(
        part if len(part) < _LONG_PART else _PIECE.sub(f"\\g<0>{_BREAK}", part) for part in parts
    )


def together(text: str) -> str:
    """Return a text in which no line ends before a unit or a `·`, within `tokens/s`, or after the `/` of a root.

    What stands between two `·` stays in one line, too, if it is short.
    """
    text = _BEFORE_DOT.sub(_NO_BREAK, _BEFORE_UNIT.sub(_NO_BREAK, text))
    text = _ROOT.sub(f"\\g<0>{_JOINER}", _RATE.sub(f"/{_JOINER}", text))
    items = text.split("· ")
    return text if len(items) < 2 else "· ".join(map(_unbroken, items))


def _unbroken(item: str) -> str:
    return item.replace(" ", _NO_BREAK) if len(item) <= _ITEM and "\n" not in item else item


def tip(text: str) -> str:
    """Escape a text for a tooltip. Qt would show a text with tags as HTML."""
    lines = html.escape(text).replace("\n", "<br>")
    return f"<qt>{lines}</qt>" if text else ""


def spaced_code(code: str) -> str:
    """Return the six digits as people read them out: `427 918`."""
    digits = "".join(code.split())
    return f"{digits[:3]} {digits[3:]}"


def devices_line(computer: Computer | None) -> str:
    """Return the devices of a computer: `RTX 3060 · 12 GB memory`; empty if they are not known."""
    devices = computer.devices if computer is not None else ()
    return " · ".join(f"{device.name} · {size(device.memory_total)} memory" for device in devices)


def hardware_line(computer: Computer) -> str:
    """Return the hardware of a computer: `This computer · RTX 3060 · 12 GB memory`."""
    parts = ["This computer"] if computer.is_self else []
    parts += [devices_line(computer)] if computer.devices else []
    if computer.devices and all(device.kind == "cpu" for device in computer.devices):
        parts.append("no graphics card")
    return " · ".join(parts)


def link_line(computer: Computer) -> str:
    """Return what goes over the link of a computer, and how fast: `Wi-Fi · 420 Mbit/s · 3 ms`."""
    measured = "" if computer.is_self else link(computer.bytes_per_s, computer.rtt_ms)
    return " · ".join(filter(None, (medium_line(computer.medium), measured)))


def medium_line(seen: Medium) -> str:
    """Return what a computer's link goes over, and the speed of a cable: `Cable (1 Gbit/s)`."""
    title = medium(seen.kind)
    return title if seen.mbit is None or not title else f"{title} ({rate(seen.mbit * 1e6 / 8)})"


def link(bytes_per_s: float | None, rtt_ms: float | None) -> str:
    """Return a link's rate and the time of a round trip, as far as they are known."""
    parts: list[str] = []
    if bytes_per_s is not None:
        parts.append(rate(bytes_per_s))
    if rtt_ms is not None:
        parts.append(f"{rtt_ms:.1f} ms" if rtt_ms < 9.95 else f"{rtt_ms:.0f} ms")
    line = " · ".join(parts)
    if bytes_per_s is not None and bytes_per_s < _SLOW_LINK:
        line += " — slow link"
    return line


def vitals(computer: Computer) -> str:
    """Return the temperature and the battery of a computer, as far as they are known: `70 °C · Battery 64 %`."""
    seen, parts = computer.vitals or Vitals(), list[str]()
    if seen.heat_c is not None:
        parts.append(f"{seen.heat_c:.0f} °C")
    if seen.battery is not None and not (seen.plugged and seen.battery > _FULL):
        parts.append(f"Battery {percent(seen.battery)}{', plugged in' if seen.plugged else ''}")
    return " · ".join(parts)


def model_name(name: str | None) -> str:
    """Return the short name of a model; the guide's plain name replaces its name in the API."""
    if name is None:
        return "Model"
    return GUIDE if name == "guide" else name.rpartition("/")[2] or name


def model_progress(model: ModelState, transfers: Sequence[Transfer]) -> str:
    """Return one line about a model that is being loaded."""
    share = "" if model.progress is None else f" · {percent(model.progress)}"
    match model.state:
        case "preparing":
            return (model.message or "Preparing the model") + share
        case "streaming":
            going = [transfer for transfer in transfers if transfer.sent < transfer.total]
            names = listing([transfer.name for transfer in going])
            line = f"Sending layers to {names}{share}" if names else f"Sending layers{share}"
            left = [transfer.eta_s for transfer in going if transfer.eta_s is not None]
            return f"{line} · {duration(max(left))} left" if left else line
        case "loading":
            return (model.message or "Loading the model") + share
        case "failed":
            return model.message or "The model could not be loaded."
        case "none" | "ready":
            return ""


def where_it_runs(state: ClusterState) -> str:
    """Return where the model runs: `this computer`, `Desk and Laptop`, `4 computers`."""
    plan = state.model.plan
    if plan is None:
        return "this computer"
    nodes = {stage.node_id for stage in plan.stages}
    if nodes <= {state.node.node_id}:
        return "this computer"
    names = list(dict.fromkeys(stage.node for stage in plan.stages))
    return listing(names) if len(names) <= _NAMED else f"{len(names)} computers"


def layer_range(start: int, stop: int) -> str:
    """Return layers as people count a range, both ends included."""
    if stop - start == 1:
        return str(start)
    return f"{start}–{stop - 1}"  # noqa: RUF001 - ranges are written with an en dash
