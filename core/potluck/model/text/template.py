"""Render a model's chat template, an untrusted jinja2 program that came with the model.

A template gets what `transformers` gives it (checked against 5.23): the sandbox of jinja2,
`raise_exception`, `strftime_now`, a `tojson` that does not escape, `break` and `continue`, the
`generation` tag, and blocks that swallow their line end. A template reads only the values that it
is given. How much it computes and how much memory it takes is not limited here: the process that
renders it has limits (`cluster/text`).
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from potluck.errors import BrokenModelError, PromptError

MAX_TEMPLATE = 1 << 20  # characters; the longest published one has some 20,000


class ChatTemplate:
    """A compiled template, and its source."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        """Compile a template.

        Args:
            source: of the template.
            now: the clock of `strftime_now`.

        Raises:
            BrokenModelError: the source is not a template, or is far too long for one.
        """
        if len(source) > MAX_TEMPLATE:
            raise BrokenModelError("The model's chat template is too long to be one.")
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )

        def strftime_now(form: object) -> str:
            return now().strftime(str(form))

        cast("dict[str, object]", environment.globals).update(
            raise_exception=_raise_exception,
            strftime_now=strftime_now,
            dict=_make_dict,
            namespace=_PublicNamespace,
        )
        cast("dict[str, object]", environment.filters)["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise BrokenModelError(
                "The model's chat template is broken. Download the model again."
            ) from error

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for one conversation.

        Raises:
            PromptError: the template refuses the conversation, or fails.
        """
        try:
            return self._template.render(variables)
        except Exception as error:  # an untrusted program may raise anything
            reason = str(error) or type(error).__name__
            raise PromptError(
                f"The model's chat template does not accept this conversation: {reason}"
            ) from error


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training and does nothing here."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PublicNamespace(Namespace):
    """jinja2's namespace without names that Python or jinja2 would call, such as `__call__`."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        Namespace.__setitem__(self, name, value)


def _check_public(name: object) -> None:
    if str(name).startswith("_"):
        raise jinja2.TemplateError(f"{name} cannot be a name in a namespace.")


def _make_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
