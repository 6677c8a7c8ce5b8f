"""`/v1/models`, and the model that a request names."""

from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.backend import Answering
from potluck.api.http.endpoint import JsonResponse, RequestError
from potluck.api.v1.answer_shapes import ModelFacts, ModelInfo, ModelList
from potluck.api.values.schema import ServedModel
from potluck.errors import ModelNotFoundError

ALIAS = "potluck"  # a model name that always means the loaded model
_LATEST = ":latest"  # Ollama's clients add it to a name without a tag
_SHOWN = 20  # names in an error


class Models:
    """The models that programs can ask for."""

    def __init__(self, backend: Answering) -> None:
        self._backend = backend

    async def list(self, request: Request) -> Response:
        """GET /v1/models."""
        served = await self._backend.served_models()
        return JsonResponse(ModelList(data=tuple(_info(model) for model in served)))

    async def show(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        return JsonResponse(_info(await self.find(request.path_params["name"])))

    async def asked(self, request: Request, name: str | None) -> tuple[ServedModel, str | None]:
        """The model of this name, and its own name; None: the request is for the loaded one.

        Raises:
            ModelNotFoundError: there is none of this name.
            RequestError: it would have to be loaded, which this program may not have done.
        """
        model = await self.find(name)
        if not name or name == ALIAS:
            return model, None
        if not model.is_loaded and "load" not in request.state.may:
            raise RequestError(
                403,
                f"The key of this program does not let it load {model.name}. It may ask the model"
                f" that is loaded, under the name {ALIAS}.",
                param="model",
            )
        return model, model.name

    async def find(self, name: str | None) -> ServedModel:
        """The model of this name; without a name, the first.

        Raises:
            ModelNotFoundError: there is none.
        """
        served = await self._backend.served_models()
        if not name or name == ALIAS:
            return served[0]
        model = named(name, served)
        if model is None:
            names = ", ".join([*(model.name for model in served[:_SHOWN]), ALIAS])
            raise ModelNotFoundError(
                f"The model “{name[:200]}” is not on this computer. What can be asked for: {names}.",
                param="model",
            )
        return model


def named(name: str, served: Sequence[ServedModel]) -> ServedModel | None:
    """The model that a client means: it may write another case, or leave out an organisation."""
    for is_meant in (_is_equal, _is_equal_in_small_letters, _is_same_without_organisation):
        for model in served:
            if any(is_meant(name, other) for other in (model.name, *model.aliases)):
                return model
    return None


def _is_equal(name: str, other: str) -> bool:
    return name == other


def _is_equal_in_small_letters(name: str, other: str) -> bool:
    return _plain(name) == _plain(other)


def _is_same_without_organisation(name: str, other: str) -> bool:
    one, two = _plain(name).split("/"), _plain(other).split("/")
    return one[-1] == two[-1] and 1 in (len(one), len(two))


def _plain(name: str) -> str:
    return name.lower().removesuffix(_LATEST)


def _info(model: ServedModel) -> ModelInfo:
    return ModelInfo(
        id=model.name,
        created=model.created,
        max_model_len=model.context or UNSET,
        potluck=ModelFacts(
            loaded=model.is_loaded,
            format=model.format,
            nbytes=model.nbytes,
            parameters=model.parameters,
        ),
    )
