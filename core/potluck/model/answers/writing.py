"""Write calls as a model would, for templates that leave them out, and to show a model how."""

import json
from collections.abc import Iterable, Mapping

from potluck.model.answers.format import ANY, CallFormat

WRITABLE = ("json", "named", "python")
"""The kinds of calls that are written here. Templates write the others themselves."""


def write_calls(form: CallFormat, calls: Iterable[tuple[str, Mapping[str, object]]]) -> str:
    """The text of calls, each a name and its arguments."""
    written = [_call(form, *call) for call in calls]
    if not form.section_opens:
        return "\n".join(f"{form.opens}\n{each}\n{form.closes}".strip() for each in written)
    inner = ", ".join(f"{form.opens}{each}{form.closes}" for each in written)
    inner = f"[{inner}]" if form.is_list else inner
    return f"{form.section_opens}{inner}{form.section_closes}".replace(ANY, "0")


def _call(form: CallFormat, name: str, arguments: Mapping[str, object]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    if form.kind == "named":
        return f"{name}{form.after_name}{text}"
    if form.kind == "python":
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if not form.name_key:
        return f"{{{json.dumps(name)}: {text}}}"
    return f'{{"{form.name_key}": {json.dumps(name)}, "{form.arguments_key}": {text}}}'
