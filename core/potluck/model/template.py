"""Render a model's chat template, an untrusted jinja2 program that came with the model.

A template gets what `transformers` gives it (checked against 5.23): the sandbox of jinja2,
`raise_exception`, `strftime_now`, a `tojson` that does not escape, `break` and `continue`, the
`generation` tag, and blocks that swallow their line end. A template reads only the values that it
is given. Its work is bounded: the steps of loops and calls, the length of what it writes, and the
size of what it repeats or joins. The work inside a single filter is not bounded: that would need a
process of its own.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from potluck.errors import BrokenModelError, PromptError

MAX_TEMPLATE = 1 << 20  # characters; the longest published one has some 20,000
MAX_TEXT = 1 << 24  # characters of a rendered chat; a million tokens have about a third of that
MAX_STEPS = 200_000  # half a second; a chat of 1,000 messages takes some 10,000
_MAX_NUMBER_BITS = 128  # so that powers of powers stay small


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, now: Callable[[], datetime], *, steps: int = MAX_STEPS) -> None:
        """Compile a template.

        Args:
            source: of the template.
            now: the clock of `strftime_now`.
            steps: iterations and calls that one rendering may take.

        Raises:
            BrokenModelError: the source is not a template, or is far too long for one.
        """
        if len(source) > MAX_TEMPLATE:
            raise BrokenModelError("The model's chat template is too long to be one.")
        self._steps = steps
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )

        def strftime_now(form: object) -> str:
            return now().strftime(str(form))

        environment.give(
            raise_exception=_raise_exception,
            strftime_now=strftime_now,
            dict=_make_dict,
            namespace=_PublicNamespace,
        )
        try:
            tree = _Metered().visit(environment.parse(source))
            self._template = environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise BrokenModelError(f"The model's chat template is broken: {error}.") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for one conversation.

        Raises:
            PromptError: the template refuses the conversation, fails, or does not end.
        """
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate({**variables, _METER: _Meter(self._steps)}):
                length += len(piece)
                _check_length(length)
                pieces.append(piece)
        except PromptError:
            raise
        except Exception as error:  # an untrusted program may raise anything
            reason = str(error) or type(error).__name__
            raise PromptError(
                f"The model's chat template does not accept this conversation: {reason}"
            ) from error
        return "".join(pieces)


_METER = "_meter"


class _Meter:
    """Counts the steps of one rendering."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise PromptError(
                "The model's chat template does not come to an end. The model's files may be broken."
            )


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox; it counts every call and iteration, and limits the size of values."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def give(self, **functions: Callable[..., object]) -> None:
        """Let templates call these functions."""
        cast("dict[str, object]", self.globals).update(functions)
        cast("dict[str, object]", self.filters)["tojson"] = _tojson

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        # A template's own variables are kept elsewhere: it can read the meter but not replace it.
        meter = cast("_Meter", context.parent[_METER])
        meter.step()
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int):  # "".center(10**9)
                _check_length(argument)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            _check_length(len(result))
        elif isinstance(result, range):  # a filter may iterate over it without a loop
            meter.step(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _check_length(_size(left) + _size(right))
        elif isinstance(left, int) and isinstance(right, int):
            other_bits = abs(right) if operator == "**" else 1
            _check_bits(left.bit_length() * other_bits + right.bit_length())
        elif operator == "*" and isinstance(right, int):
            _check_length(_size(left) * right)
        elif operator == "*" and isinstance(left, int):
            _check_length(_size(right) * left)
        return super().call_binop(context, operator, left, right)

    def iteration(self) -> bool:
        """Do nothing. Every iteration of a loop calls it, and `call` counts that."""
        return True

    def join(self, *values: object) -> str:
        """`a ~ b`, which jinja2 itself would compute outside of the sandbox."""
        return "".join(str(value) for value in values)


class _Metered(NodeTransformer):
    """Make loops and `~` go through `_Environment.call`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # jinja2's naming
        self.generic_visit(node)
        step = nodes.ExprStmt(_call("iteration", [], node.lineno), lineno=node.lineno)
        node.body = [step, *node.body]
        if node.test is not None:
            skipped = _call("iteration", [], node.lineno)
            node.test = nodes.And(skipped, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("join", node.nodes, node.lineno)


def _call(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    method = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(method, arguments, [], None, None, lineno=lineno)


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


def _size(value: Any) -> int:
    return len(cast("str", value)) if isinstance(value, str | list | tuple) else 0


def _check_length(length: float) -> None:
    if length > MAX_TEXT:
        raise PromptError(
            f"The conversation becomes longer than {MAX_TEXT:,} characters. Make it shorter."
        )


def _check_bits(bits: int) -> None:
    if bits > _MAX_NUMBER_BITS:
        raise jinja2.TemplateError("A number in the template grows too large.")


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
