"""Asks the Hugging Face Hub: what there is, what a repository has, and whose token this is.

All methods block, each for at most some `TIMEOUT_S`: call them in a thread. Nothing is written to the disk.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from potluck.api.hub import HubModel, Variant
from potluck.errors import GatedModelError, HubError, ModelError, NotFoundError, UsageError
from potluck.hub.sentences import explained, page_of
from potluck.hub.variants import (
    RemoteFile,
    RemoteVariant,
    is_safe,
    quantised_config,
    variants_of,
)
from potluck.model.config import ModelConfig
from potluck.model.families import FAMILIES
from potluck.model.fields import unknown_architecture
from potluck.model.gguf_config import GGUF_ARCHITECTURES

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

TIMEOUT_S = 15.0  # of one request
MAX_FOUND = 30  # models of one search
_MAX_JSON = 4 << 20  # bytes of a config or a tokenizer's config
_LICENSE = "license:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

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

        def ask(api: "HfApi") -> list[HubModel]:
            from huggingface_hub.hf_api import ModelInfo

            # `list_models` would ask again for 20 seconds if the Hub refuses.
            question = {
                "search": words,
                "pipeline_tag": "text-generation",
                "sort": "downloads",
                "limit": MAX_FOUND,
                "expand": ["config", "downloads", "gated", "gguf", "safetensors", "tags"],
            }
            found = self._get(f"{api.endpoint}/api/models", question)
            return [
                _model(ModelInfo(**entry)) for entry in cast("list[dict[str, Any]]", found or [])
            ]

        return self._ask(words, ask)

    def look(self, name: str) -> Repository:
        """What a repository has.

        Raises:
            NotFoundError: there is no such repository, or the token may not see it.
            OfflineError, HubError, TooManyRequestsError: the Hub does not answer.
        """

        def ask(api: "HfApi") -> Repository:
            info = api.model_info(name, files_metadata=True, timeout=TIMEOUT_S)
            if _COMMIT.fullmatch(info.sha or "") is None:
                raise HubError(f"The Hub does not say which version {name} has. Try again later.")
            files = [
                RemoteFile(
                    name=file.rfilename,
                    nbytes=file.size or 0,
                    sha256=file.lfs.sha256 if file.lfs is not None else None,
                )
                for file in info.siblings or ()
                if is_safe(file.rfilename)
                and (file.lfs is None or _SHA256.fullmatch(file.lfs.sha256))
            ]
            variants = variants_of(files)
            names = {file.name for file in files}
            config = self._config(api, info, names)
            return Repository(
                model=_detailed(_model(info), info, names, variants, config),
                revision=info.sha or "",
                variants=variants,
                config=config,
            )

        return self._ask(name, ask)

    def require_access(self, name: str, revision: str, file: str) -> None:
        """Ask whether a file of a repository may be downloaded.

        Raises:
            GatedModelError: not without accepted terms, or not without a token.
            NotFoundError, OfflineError, HubError, TooManyRequestsError: as for `look`.
        """

        def ask(api: "HfApi") -> None:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url

            url = hf_hub_url(name, file, revision=revision, endpoint=api.endpoint)
            get_hf_file_metadata(url, token=api.token, timeout=TIMEOUT_S)

        self._ask(name, ask)

    def user(self, token: str) -> str:
        """The name of the user whose token this is.

        Raises:
            UsageError: the Hub does not know the token.
            OfflineError, HubError: it cannot be asked.
        """

        def ask(api: "HfApi") -> str:
            return str(api.whoami(token=token)["name"])

        return self._ask("", ask, token=token)

    def _config(
        self, api: "HfApi", info: "ModelInfo", names: set[str]
    ) -> Mapping[str, object] | None:
        """`config.json` of this repository or, if it has none, of the one that it was made from.

        Returns:
            None if there is none, or its repository is gated or gone.
        """
        name, revision = info.id, info.sha or "main"
        if "config.json" not in names:
            bases = info.card_data.get("base_model") if info.card_data is not None else None
            base = bases[0] if isinstance(bases, list) and len(bases) == 1 else bases
            if not isinstance(base, str) or base.count("/") != 1:
                return None
            name, revision = base, "main"
        try:
            return self._json(api, name, revision)
        except Exception as error:
            shown = explained(error, name, has_token=True)
            if isinstance(shown, GatedModelError | NotFoundError):
                return None
            raise

    def _json(self, api: "HfApi", name: str, revision: str) -> Mapping[str, object]:
        from huggingface_hub import hf_hub_url

        value = self._get(hf_hub_url(name, "config.json", revision=revision, endpoint=api.endpoint))
        if not isinstance(value, dict):
            raise HubError(f"The config.json of {name} is not readable JSON. Use another model.")
        return cast("dict[str, object]", value)

    def _get(self, url: str, question: Mapping[str, object] | None = None) -> object:
        """The JSON at an address; None: what is there is none, or far too large."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = build_hf_headers(token=self._token() or False)
        response = get_session().get(
            url,
            params=cast("dict[str, str]", question),
            headers=headers,
            timeout=TIMEOUT_S,
            follow_redirects=True,
        )
        hf_raise_for_status(response)
        if len(response.content) > _MAX_JSON:
            return None
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            return None

    def _ask(self, name: str, work: "Callable[[HfApi], _T]", token: str | None = None) -> _T:
        from huggingface_hub import HfApi, get_session

        token = token or self._token()
        get_session().timeout = TIMEOUT_S  # it waits without an end by itself
        try:
            return work(HfApi(endpoint=self._endpoint, token=token or False))
        except Exception as error:
            shown = explained(error, name, has_token=token is not None)
            if shown is None:
                raise
            raise shown from error


def require_known(name: str, repository: Repository, variant: RemoteVariant) -> None:
    """Refuse a variant that could not be run, before anything is downloaded.

    Raises:
        ModelError, UsageError: says why.
    """
    if (config := repository.config_of(variant)) is not None:
        ModelConfig.from_dict(config)
    elif repository.model.problem is not None:
        raise UsageError(repository.model.problem, model=name)


def _model(info: "ModelInfo") -> HubModel:
    """What a list says about a model."""
    tags = info.tags or []
    config: dict[str, Any] = info.config or {}
    gguf: dict[str, Any] = getattr(info, "gguf", None) or {}
    architectures: list[str] = config.get("architectures") or []
    known = next((name for name in architectures if name in FAMILIES), None)
    architecture = known or next(iter(architectures), None) or gguf.get("architecture")
    total = info.safetensors.total if info.safetensors is not None else gguf.get("total")
    return HubModel(
        name=info.id,
        page=page_of(info.id),
        parameters=total if isinstance(total, int) else None,
        license=next((t.removeprefix(_LICENSE) for t in tags if t.startswith(_LICENSE)), None),
        gated=bool(info.gated),
        downloads=info.downloads,
        architecture=architecture,
        context=gguf.get("context_length"),
        problem=_unknown(architecture, known is not None),
    )


def _unknown(architecture: str | None, is_known: bool) -> str | None:
    if architecture is None or is_known or architecture in GGUF_ARCHITECTURES:
        return None
    return unknown_architecture("The model", architecture, FAMILIES).message


def _detailed(
    model: HubModel,
    info: "ModelInfo",
    names: set[str],
    variants: tuple[RemoteVariant, ...],
    config: Mapping[str, object] | None,
) -> HubModel:
    from msgspec.structs import replace

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
    gguf: dict[str, Any] = getattr(info, "gguf", None) or {}
    tokenizer: dict[str, Any] = (info.config or {}).get("tokenizer_config") or {}
    templates = (gguf.get("chat_template"), tokenizer.get("chat_template"))
    return replace(
        model,
        context=context,
        problem=problem,
        has_chat_template="chat_template.jinja" in names or any(templates),
        variants=tuple(
            Variant(name=variant.name, format=variant.format, nbytes=variant.nbytes)
            for variant in variants
        ),
    )
