"""What the Models page and the picker say of each model and each download. Pure."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from potluck.api.values.hub import Download, Fit, HubModel, Speed, Variant
from potluck.api.values.schema import ModelEntry
from potluck_app import wording
from potluck_app.tokens import Tone

Badge: TypeAlias = tuple[str, Tone]
"""A state in one to three words, with its meaning."""

_SOURCES = {
    "potluck": "Comes with Potluck",
    "folder": "In a folder of yours",
    "hub": "In the Hugging Face cache",
    "ollama": "Found in Ollama",
    "lmstudio": "Found in LM Studio",
}
_GGUF = "-gguf"
_SMALL = 0.95  # billion parameters; smaller models are counted in millions


class ModelRow(Struct, frozen=True, kw_only=True):
    """A model on this computer."""

    path: str
    name: str
    facts: str  # its parameters, its size on each computer, and where it was found
    fit: str  # one or two sentences
    badge: Badge
    problem: str = ""  # a sentence: why it cannot be run
    speed: str = ""  # short, for the picker: its speed, or what it lacks
    in_use: bool = False
    is_guide: bool = False
    can_be_used: bool = True
    can_be_deleted: bool = False
    size: str = ""


class VariantRow(Struct, frozen=True, kw_only=True):
    """One form of a model of the Hub."""

    name: str
    text: str  # its name and size
    fit: str
    is_best: bool
    path: str | None  # None: it is not on this computer


class HubRow(Struct, frozen=True, kw_only=True):
    """A model of the Hub."""

    name: str  # org/name
    title: str
    about: str
    facts: str
    fit: str
    badge: Badge
    page: str
    gated: bool
    problem: str
    path: str | None  # of the best variant, or of any that is here; None: it must be downloaded
    can_download: bool  # the best variant; False: a variant must be chosen first
    best: str | None
    variants: tuple[VariantRow, ...]
    is_best_choice: bool = False  # of all that are recommended


class DownloadRow(Struct, frozen=True, kw_only=True):
    """A model that is being downloaded."""

    id: str
    title: str
    line: str
    fraction: float
    tone: Tone
    can_pause: bool
    can_resume: bool
    path: str | None  # once it is done


def model_rows(entries: Iterable[ModelEntry]) -> tuple[ModelRow, ...]:
    """Return the models on this computer: the one in use first, then those that fit, by name."""
    rows = [_model_row(entry) for entry in entries]
    return tuple(sorted(rows, key=lambda row: (not row.in_use, not row.can_be_used, row.name)))


def _model_row(entry: ModelEntry) -> ModelRow:
    size = f"{wording.size(entry.nbytes)} here"
    held = [f"{wording.size(nbytes)} on {name}" for name, nbytes in entry.held.items()]
    badge = _badge(entry.fit)
    if entry.current:
        badge = ("In use", "ok")
    elif entry.problem:
        badge = ("Cannot be used", "err")
    fits = entry.fit is None or entry.fit.fits is not False
    return ModelRow(
        path=entry.path,
        name=wording.model_name(entry.name),
        facts=" · ".join(
            filter(None, [_parameters(entry.parameters), size, *held, _SOURCES[entry.source]])
        ),
        fit="" if entry.fit is None else entry.fit.text,
        badge=badge,
        problem=entry.problem or "",
        speed="cannot be used" if entry.problem else short_fit(entry.fit),
        in_use=entry.current,
        is_guide=entry.source == "potluck",
        can_be_used=fits and not entry.problem,
        can_be_deleted=entry.can_be_deleted,
        size=wording.size(entry.nbytes),
    )


def hub_row(model: HubModel, entries: Sequence[ModelEntry], details: HubModel | None) -> HubRow:
    """Return a model of the Hub.

    Args:
        model: as a list has it.
        entries: the models on this computer.
        details: what is known since it was looked at.
    """
    shown = details or model
    variants = tuple(_variant_row(v, shown, entries) for v in shown.variants)
    best = next((v for v in shown.variants if v.name == shown.best), None)
    size = f"{best.name}, {wording.size(best.nbytes)}" if best is not None else ""
    here = [v.path for v in variants if v.path is not None and v.is_best]
    here += [v.path for v in variants if v.path is not None]
    facts = (
        _parameters(shown.parameters or model.parameters),
        size,
        f"licence {shown.license or model.license}" if shown.license or model.license else "",
        f"from {model.name.partition('/')[0]}",
        f"{wording.thousands(model.downloads)} downloads" if model.downloads else "",
    )
    return HubRow(
        name=model.name,
        title=hub_title(model.name),
        about=model.about,
        facts=" · ".join(filter(None, facts)),
        fit="" if shown.fit is None else shown.fit.text,
        badge=("Downloaded", "ok") if here else _badge(shown.fit),
        page=model.page,
        gated=shown.gated or model.gated,
        problem=shown.problem or "",
        path=here[0] if here else None,
        can_download=best is not None,
        best=shown.best,
        variants=variants if details is not None else (),
    )


def _variant_row(variant: Variant, model: HubModel, entries: Sequence[ModelEntry]) -> VariantRow:
    path = variant.path
    if path is None:
        path = next((e.path for e in entries if _is_variant(e, model.name, variant)), None)
    return VariantRow(
        name=variant.name,
        text=f"{variant.name} · {wording.size(variant.nbytes)}",
        fit="" if variant.fit is None else variant.fit.text,
        is_best=variant.name == model.best,
        path=path,
    )


def _is_variant(entry: ModelEntry, repository: str, variant: Variant) -> bool:
    """Return whether a model on this computer is this form of a repository, by its name."""
    name = entry.name.lower()
    if variant.format == "safetensors":
        return name == repository.lower()
    return name.startswith(f"{repository.lower()}/") and name.endswith(variant.name.lower())


def download_row(download: Download) -> DownloadRow:
    """Return a download, with how far it is and what can be done about it."""
    share = download.done / download.total if download.total else 0.0
    return DownloadRow(
        id=download.id,
        title=f"{hub_title(download.model)} ({download.variant})",
        line=_download_line(download),
        fraction=1.0 if download.state == "done" else share,
        tone=_DOWNLOAD_TONES.get(download.state, "accent"),
        can_pause=download.state in ("queued", "running", "offline"),
        can_resume=download.state in ("paused", "failed"),
        path=download.path,
    )


_DOWNLOAD_TONES: dict[str, Tone] = {"done": "ok", "failed": "err", "paused": "neutral"}


def _download_line(download: Download) -> str:
    amount = f"{wording.size(download.done)} of {wording.size(download.total)}"
    match download.state:
        case "queued":
            before = "Waits for the download before it"
            if download.place is not None and download.place > 1:
                before = f"Waits for {download.place} downloads before it"
            return f"{before} · {wording.size(download.total)}"
        case "paused":
            return f"Paused · {amount}"
        case "offline":
            message = download.message or "The Hugging Face Hub cannot be reached."
            return f"{message} It goes on by itself · {amount}"
        case "failed":
            return download.message or "The download failed."
        case "done":
            return f"Downloaded · {wording.size(download.total)}"
        case "running":
            parts = [amount]
            if download.bytes_per_s:
                parts.append(f"{wording.size(download.bytes_per_s)}/s")
            if download.eta_s is not None:
                parts.append(f"{wording.duration(download.eta_s)} left")
            return " · ".join(parts)


def hub_title(name: str) -> str:
    """Return the short name of a repository: `Qwen3-8B` for Qwen/Qwen3-8B-GGUF."""
    last = name.rpartition("/")[2]
    return last[: -len(_GGUF)] if last.lower().endswith(_GGUF) else last


def short_fit(fit: Fit | None) -> str:
    """Return a speed, or what is missing: `about 11 tokens/s`, `needs 8 GB more`; empty if not known."""
    if fit is None or fit.fits is None:
        return ""
    if not fit.fits:
        return f"needs {wording.size(fit.missing)} more"
    return _speed(fit.speed) if fit.speed is not None else "fits"


def _speed(speed: Speed) -> str:
    low, high = (f"{rate:.0f}" if rate >= 2 else f"{rate:.1f}" for rate in (speed.low, speed.high))
    return f"about {low} tokens/s" if low == high else f"{low} to {high} tokens/s"


def _badge(fit: Fit | None) -> Badge:
    if fit is None or fit.fits is None:
        return "", "neutral"
    if not fit.fits:
        return "Too big", "warn"
    return ("Fits this computer" if fit.alone else "Fits together"), "ok"


def _parameters(count: int | None) -> str:
    if not count:
        return ""
    billions = count / 1e9
    if billions < _SMALL:
        return f"{1000 * billions:.0f} million parameters"
    return f"{billions:.1f} billion parameters"
