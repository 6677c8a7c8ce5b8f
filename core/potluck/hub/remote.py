"""Asks the Hugging Face Hub: what there is, what a repository has, and whose token this is.

All methods block, each for at most some `TIMEOUT_S`: call them in a thread. Nothing is written to the disk.
What the Hub answers is checked as that of any stranger is: names, sizes, and how much it sends.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast
from urllib.parse import quote

import msgspec

from potluck.api.values.hub import HubModel, Variant
from potluck.errors import GatedModelError, HubError, ModelError, NotFoundError, UsageError
from potluck.hub.answers import Config, Entry, File, Gguf, User
from potluck.hub.sentences import absent, explained, page_of
from potluck.hub.variants import (
    TEMPLATES,
    RemoteFile,
    RemoteVariant,
    is_safe,
    quantised_config,
    variants_of,
)
from potluck.model.config import ModelConfig
from potluck.model.families.table import FAMILIES
from potluck.model.gguf.families import GGUF_ARCHITECTURES
from potluck.model.unsupported import unknown_architecture
from potluck.model.vision.projector import SEEING_DECODERS

TIMEOUT_S = 15.0  # of one request
MAX_FOUND = 30  # models of one search
MAX_ANSWER = 16 << 20  # bytes; a repository of a thousand files has one of 300 kB
MAX_FILE = 1 << 42  # bytes; the largest files of the Hub have 50 GB
_DETAILS = ("config", "downloads", "gated", "gguf", "safetensors", "tags")
_LICENSE = "license:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What a repository has, read without downloading a model."""

    model: HubModel  # with its variants, without their fit
    revision: str  # the commit
    variants: tuple[RemoteVariant, ...]
    config: Mapping[str, object] | None  # config.json of the model, or of the one it was made from

    def config_of(self, variant: RemoteVariant) -> Mapping[str, object] | None:
        """The config of one form; None: it is only in the form itself."""
        if self.config is None or variant.format == "safetensors":
            return self.config
        return quantised_config(self.config, variant.name)


class Hub:
    """The Hub.

    Args:
        token: returns the user's token; None: there is none.
        endpoint: its address; None: that of `HF_ENDPOINT`, or huggingface.co.
    """

    def __init__(self, token: Callable[[], str | None], endpoint: str | None = None) -> None:
        self._token = token
        self._endpoint = endpoint

    def search(self, words: str) -> list[HubModel]:
        """Models that write text and have these words in their name, the most downloaded first.

        Raises:
            OfflineError: the Hub cannot be reached.
            HubError, TooManyRequestsError: it does not answer the search.
        """
        question = {
            "search": words,
            "pipeline_tag": "text-generation",
            "sort": "downloads",
            "limit": MAX_FOUND,
            "expand": _DETAILS,
        }

        def ask() -> list[HubModel]:
            found = _decoded(self._get("api/models", question), list[msgspec.Raw])
            return list(map(_model, filter(None, map(_entry, found[:MAX_FOUND]))))

        return self._explaining("", ask)

    def look(self, name: str) -> Repository:
        """What a repository has.

        Raises:
            NotFoundError: there is no such repository, or the token may not see it.
            OfflineError, HubError, TooManyRequestsError: the Hub does not answer.
        """

        def ask() -> Repository:
            if _REPOSITORY.fullmatch(name) is None:
                raise absent(name, has_token=self._token() is not None)
            entry = _decoded(self._get(f"api/models/{name}", {"blobs": "true"}), Entry)
            revision = entry.sha or ""
            # A repository that was renamed says its new name.
            if _REPOSITORY.fullmatch(entry.id) is None or _COMMIT.fullmatch(revision) is None:
                raise HubError(f"The Hub does not say which version {name} has. Try again later.")
            files = [file for file in map(_file, entry.siblings) if file is not None]
            gguf = entry.gguf or Gguf()
            variants = variants_of(files, can_see=gguf.architecture in SEEING_DECODERS)
            names = {file.name for file in files}
            config = self._config(entry, names)
            return Repository(
                model=_detailed(_model(entry), entry, names, variants, config),
                revision=revision,
                variants=variants,
                config=config,
            )

        return self._explaining(name, ask)

    def require_access(self, name: str, revision: str, file: str) -> None:
        """Ask whether a file of a repository may be downloaded.

        Raises:
            GatedModelError: not without accepted terms, or not without a token.
            NotFoundError, OfflineError, HubError, TooManyRequestsError: as for `look`.
        """
        place = f"{name}/resolve/{revision}/{quote(file)}"
        self._explaining(name, lambda: self._get(place, method="HEAD"))

    def user(self, token: str) -> str:
        """The name of the user whose token this is.

        Raises:
            GatedModelError: the Hub does not know the token.
            OfflineError, HubError: it cannot be asked.
        """

        def ask() -> str:
            return _decoded(self._get("api/whoami-v2", token=token), User).name

        return self._explaining("", ask, token=token)

    def _config(self, entry: Entry, names: set[str]) -> Mapping[str, object] | None:
        """`config.json` of this repository or, if it has none, of the one that it was made from.

        Returns:
            None if there is none, or its repository is gated or gone.
        """
        name, revision = entry.id, entry.sha
        if "config.json" not in names:
            bases = entry.card.base_model if entry.card is not None else None
            base = bases[0] if isinstance(bases, tuple) and len(bases) == 1 else bases
            if not isinstance(base, str) or _REPOSITORY.fullmatch(base) is None:
                return None
            name, revision = base, "main"

        def ask() -> Mapping[str, object]:
            content = self._get(f"{name}/resolve/{revision}/config.json")
            try:
                value = json.loads(content)  # as it is read once it is here: with NaN and Infinity
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise HubError(
                    f"The config.json of {name} is not readable JSON. Use another model."
                )
            return cast("dict[str, object]", value)

        try:
            return self._explaining(name, ask)
        except (GatedModelError, NotFoundError):
            return None

    def _get(
        self,
        place: str,
        question: Mapping[str, object] | None = None,
        *,
        method: Literal["GET", "HEAD"] = "GET",
        token: str | None = None,
    ) -> bytes:
        """What the Hub has at a place.

        A token goes only to the Hub itself: the HTTP client leaves it out where it is redirected to
        another host.

        Raises:
            HubError: it is more than `MAX_ANSWER`, or comes too slowly.
        """
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        content, ends_at = bytearray(), time.monotonic() + TIMEOUT_S
        with get_session().stream(
            method,
            f"{self._endpoint or constants.ENDPOINT}/{place}",
            params=cast("dict[str, str]", question),
            headers=build_hf_headers(token=token or self._token() or False),
            timeout=TIMEOUT_S,
            follow_redirects=method == "GET",  # to be sent on is to be allowed
        ) as response:
            hf_raise_for_status(response)
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MAX_ANSWER or time.monotonic() > ends_at:
                    raise HubError(
                        "The Hub's answer is too long, or comes too slowly. Try again later."
                    )
        return bytes(content)

    def _explaining(self, name: str, work: Callable[[], _T], token: str | None = None) -> _T:
        """Do this, with errors as `sentences.explained` has them."""
        try:
            return work()
        except Exception as error:
            has_token = (token or self._token()) is not None
            if (shown := explained(error, name, has_token=has_token)) is None:
                raise
            raise shown from error


def _decoded(content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:  # bad JSON and UTF-8 are ValueErrors
        raise HubError(
            "The Hub's answer cannot be read. Look whether the Internet connection asks for a login;"
            " else try again later."
        ) from error


def _entry(content: msgspec.Raw) -> Entry | None:
    """An entry of a list; None: it cannot be read, or could not be asked for."""
    try:
        entry = msgspec.json.decode(content, type=Entry)
    except (ValueError, RecursionError):
        return None
    return entry if _REPOSITORY.fullmatch(entry.id) is not None else None


def _file(file: File) -> RemoteFile | None:
    """A file that can be fetched and checked; None: this one cannot."""
    digest, pattern = file.blob_id, _COMMIT
    if file.lfs is not None:
        digest, pattern = file.lfs.sha256, _SHA256
    if digest is None or pattern.fullmatch(digest) is None or not is_safe(file.name):
        return None
    if file.size is None or not 0 <= file.size <= MAX_FILE:
        return None
    return RemoteFile(name=file.name, nbytes=file.size, digest=digest)


def require_known(name: str, repository: Repository, variant: RemoteVariant) -> None:
    """Refuse a variant that could not be run, before anything is downloaded.

    Raises:
        ModelError, UsageError: says why.
    """
    if (config := repository.config_of(variant)) is not None:
        ModelConfig.from_dict(config)
    elif repository.model.problem is not None:
        raise UsageError(repository.model.problem, model=name)


def _model(entry: Entry) -> HubModel:
    """What a list says about a model."""
    gguf = entry.gguf or Gguf()
    architectures = (entry.config or Config()).architectures or ()
    known = next((name for name in architectures if name in FAMILIES), None)
    architecture = known or next(iter(architectures), None) or gguf.architecture
    total = entry.safetensors.total if entry.safetensors is not None else gguf.total
    licenses = (tag.removeprefix(_LICENSE) for tag in entry.tags if tag.startswith(_LICENSE))
    return HubModel(
        name=entry.id,
        page=page_of(entry.id),
        parameters=total,
        license=next(licenses, None),
        gated=bool(entry.gated),
        downloads=entry.downloads,
        architecture=architecture,
        context=gguf.context_length,
        problem=_unknown(architecture, known is not None),
    )


def _unknown(architecture: str | None, is_known: bool) -> str | None:
    if architecture is None or is_known or architecture in GGUF_ARCHITECTURES:
        return None
    return unknown_architecture("The model", architecture, FAMILIES).message


def _detailed(
    model: HubModel,
    entry: Entry,
    names: set[str],
    variants: tuple[RemoteVariant, ...],
    config: Mapping[str, object] | None,
) -> HubModel:
    problem, context = model.problem, model.context
    if not variants:
        problem = problem or (
            f"{model.name} has its weights in no form that Potluck reads: safetensors or GGUF."
        )
    elif config is not None and problem is None:
        try:
            context = ModelConfig.from_dict(config).max_position
        except ModelError as error:
            problem = error.message
    tokenizer = entry.config.tokenizer_config if entry.config is not None else None
    templates = [part.chat_template for part in (entry.gguf, tokenizer) if part is not None]
    return msgspec.structs.replace(
        model,
        context=context,
        problem=problem,
        has_chat_template=bool(names & TEMPLATES) or any(templates),
        variants=tuple(
            Variant(name=variant.name, format=variant.format, nbytes=variant.nbytes)
            for variant in variants
        ),
    )
