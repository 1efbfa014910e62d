"""TOML and environment variables into a frozen model, or one sentence for each thing that is wrong.

`EVERLOOP__SECTION__KEY=value` overrides `key` in `[section]`; a number names an entry of a list
(`EVERLOOP__ENGINES__0__PORT=8001`). A value is read as TOML where it is TOML, and as text where it is not.
Relative paths are taken from the folder of the configuration file.
"""

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipelines.errors import ConfigError

PREFIX = "EVERLOOP__"
M = TypeVar("M", bound=BaseModel)


def read(path: Path, environment: Mapping[str, str], model: type[M]) -> M:
    """The configuration in the file `path` under `environment`; raises `ConfigError`."""
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError([f"{path} does not exist: name the configuration with --config"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} cannot be read: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path} is not TOML: {error}"]) from None
    return parse(values, environment, model, path.resolve().parent)


def parse(values: dict, environment: Mapping[str, str], model: type[M], base: Path) -> M:
    """`values` under `environment` as a `model`, with relative paths taken from `base`; raises `ConfigError`."""
    problems = list(_override(values, environment))
    problems += list(unknown_keys(values, model))
    if problems:
        raise ConfigError(problems)
    _anchor(values, model, base)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError([_problem(e) for e in error.errors()]) from None


def unknown_keys(values: Any, model: Any, at: str = "") -> Iterator[str]:
    """A sentence for each key that `model` has not, with the nearest one that it has."""
    for inner, value, where in _inner(values, model, at):
        yield from unknown_keys(value, inner, where)
    shape = _model(model)
    if shape is None or not isinstance(values, dict):
        return
    for key in values:
        if key not in shape.model_fields:
            near = difflib.get_close_matches(key, shape.model_fields, 1)
            known = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(shape.model_fields) or 'no keys'}"
            where = f"[{at}]" if at else "the configuration"
            yield f'{where} has no key "{key}": {known}'


def _override(values: dict, environment: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        *path, last = name.removeprefix(PREFIX).lower().split("__")
        at: Any = values
        try:
            for step in path:
                at = at[int(step)] if isinstance(at, list) else at.setdefault(_key(at, step), {})
            if isinstance(at, list):
                at[int(last)] = _toml(environment[name])
            else:
                at[_key(at, last)] = _toml(environment[name])
        except (ValueError, IndexError, TypeError, AttributeError):
            yield f"the environment variable {name} names nothing in the configuration"


def _key(table: dict, name: str) -> str:
    """The key of `table` that an upper-case variable means: names of policies may hold `-` and capitals."""
    return next((key for key in table if key.lower().replace("-", "_") == name), name)


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _anchor(values: Any, model: Any, base: Path) -> None:
    """Makes each relative path below `values` absolute, in place."""
    for inner, value, _ in _inner(values, model, ""):
        _anchor(value, inner, base)
    shape = _model(model)
    if shape is None or not isinstance(values, dict):
        return
    for key, field in shape.model_fields.items():
        if isinstance(values.get(key), str) and Path in _arms(field.annotation):
            values[key] = str(base / Path(values[key]).expanduser())


def _inner(values: Any, model: Any, at: str) -> Iterator[tuple[Any, Any, str]]:
    """The parts of `values` that have a model or a container of their own: (type, value, path)."""
    for arm in _arms(model):
        origin, arguments = typing.get_origin(arm), typing.get_args(arm)
        if isinstance(values, dict) and isinstance(arm, type) and issubclass(arm, BaseModel):
            for key, field in arm.model_fields.items():
                if key in values:
                    yield field.annotation, values[key], f"{at}.{key}" if at else key
        elif isinstance(values, dict) and origin is dict:
            for key, value in values.items():
                yield arguments[1], value, f"{at}.{key}"
        elif isinstance(values, list) and origin in (list, tuple):
            for n, value in enumerate(values):
                yield arguments[0], value, f"{at}[{n}]"


def _arms(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself; without `Annotated`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _arms(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(inner for arm in typing.get_args(annotation) for inner in _arms(arm))
    return (annotation,)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The one model among the arms of a type, None where there is none or a choice."""
    models = [arm for arm in _arms(annotation) if isinstance(arm, type) and issubclass(arm, BaseModel)]
    return models[0] if len(models) == 1 else None


def _problem(error: Any) -> str:
    at = ".".join(str(part) for part in error["loc"]) or "the configuration"
    if error["type"] == "missing":
        return f"{at} is missing: set it"
    said = error["msg"].removeprefix("Value error, ")
    given = "" if error["type"] == "value_error" or isinstance(error["input"], dict) else f" (it is {error['input']!r})"
    return f"{at}: {said[:1].lower()}{said[1:]}{given}"
