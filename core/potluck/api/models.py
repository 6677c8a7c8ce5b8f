"""`/v1/models`, and the model that a request names."""

from starlette.requests import Request
from starlette.responses import Response

from potluck.api import openai
from potluck.api.backend import Answering
from potluck.api.endpoint import JsonResponse
from potluck.api.schema import ServedModel
from potluck.errors import ModelNotFoundError

ALIAS = "potluck"  # a model name that always means the loaded model


class Models:
    """The models that programs can ask for."""

    def __init__(self, backend: Answering) -> None:
        self._backend = backend

    async def list(self, request: Request) -> Response:
        """GET /v1/models."""
        served = await self._backend.served_models()
        return JsonResponse(openai.ModelList(data=tuple(_info(model) for model in served)))

    async def show(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        return JsonResponse(_info(await self.find(request.path_params["name"])))

    async def find(self, name: str | None) -> ServedModel:
        """The model of this name; without a name, the first.

        Raises:
            ModelNotFoundError: there is none.
        """
        served = await self._backend.served_models()
        for model in served:
            if not name or name in (ALIAS, model.name, *model.aliases):
                return model
        names = ", ".join([*(model.name for model in served), ALIAS])
        raise ModelNotFoundError(
            f"The model “{name}” is not loaded. What can be asked for now: {names}.", param="model"
        )

    async def asked(self, name: str | None) -> str | None:
        """The name of the model that a request must be answered by; None: by the one that is loaded.

        Raises:
            ModelNotFoundError: there is none of this name.
        """
        model = await self.find(name)
        return model.name if name and name != ALIAS else None


def _info(model: ServedModel) -> openai.ModelInfo:
    return openai.ModelInfo(id=model.name, created=model.created)
