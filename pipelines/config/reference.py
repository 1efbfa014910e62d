"""The configuration reference, written from the models: `everloop config reference`."""

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_HEAD = """# Configuration

One TOML file; `EVERLOOP__SECTION__KEY=value` in the environment overrides a key. Unknown keys are errors. Relative
paths are taken from the folder of the file, and `module:function` may name a module there. This page is generated:
`everloop config reference`.
"""


def render(model: type[BaseModel]) -> str:
    """The Markdown reference of `model` and everything in it."""
    return _HEAD + "".join(_tables(model, ""))


def _tables(model: type[BaseModel], at: str) -> Iterator[str]:
    inner: list[tuple[type[BaseModel], str]] = []
    rows = []
    for name, field in model.model_fields.items():
        path = f"{at}.{name}" if at else name
        nested = _nested(field.annotation, path)
        if nested:
            inner.append(nested)
            continue
        default = _default(field.get_default(call_default_factory=True))
        rows.append(f"| `{name}` | {_type(field.annotation)} | {default} | {_cell(field.description or '')} |\n")
    if rows:
        title = at if at.startswith("[[") else f"[{at}]"
        lead = " ".join((model.__doc__ or "").split("\n\n")[0].split())
        yield f"\n## `{title}`\n\n{lead}\n\n| key | type | default | |\n|---|---|---|---|\n" + "".join(rows)
    for shape, path in inner:
        yield from _tables(shape, path)


def _nested(annotation: Any, path: str) -> tuple[type[BaseModel], str] | None:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, path
    if origin is dict and isinstance(arguments[1], type) and issubclass(arguments[1], BaseModel):
        return arguments[1], f"{path}.NAME"
    if origin in (list, tuple) and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
        return arguments[0], f"[[{path}]]"
    if origin in (typing.Union, types.UnionType):
        found = [_nested(arm, path) for arm in arguments]
        return next((nested for nested in found if nested), None)
    return None


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(arm) for arm in arguments if arm is not type(None))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(repr, value))}]`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
