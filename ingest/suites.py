"""Suites of the user's own: a TOML file that adds expectations to the gate's, and replaces or disables them by name.

```toml
[candidate]                                     # or [turns], [feedback]
disable = ["no subject dominates"]

[candidate.expect."short answers"]              # a name of everloop's: instead of that one
class = "ExpectColumnMeanToBeBetween"           # of Great Expectations
column = "output_tokens"                        # every other key is an argument of the class
max_value = 400
```

A wrong name, class, column or argument is found before anything runs. `everloop dataset suites` lists what there is.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.frames import COLUMNS

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

_OURS = {"id", "meta", "batch_id", "result_format", "catch_exceptions", "rendered_content", "windows", "severity"}
"""Arguments of every expectation that are the gate's business."""
_LISTS = ("column_list", "column_set", "regex_list")
"""Arguments that are looked into before Great Expectations sees them."""
_OTHER_TABLES = {"ExpectQueryResultsToMatchComparison", "ExpectTableRowCountToEqualOtherTable"}


class SuiteError(ValueError):
    """The file of suites cannot be used: says where and why."""


@dataclass(frozen=True)
class Changes:
    """What a file asks of one suite: expectations by name, with class and arguments, and names that are not asked."""

    expect: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    disable: Collection[str] = ()


def read_suites(path: Path, required: bool) -> dict[str, Changes]:
    """The changes by table. {} where there is no file, unless it is `required`. Raises `SuiteError`."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        if required:
            raise SuiteError(f"{path} does not exist: [policies.NAME.gate] suites names it") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path} cannot be read: {error}") from error
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SuiteError(f"{path}: {error}") from error
    changes = {}
    for table, asked in tables.items():
        _known(table, COLUMNS, f"{path}: there is no table [{table}]")
        if not isinstance(asked, dict):
            raise SuiteError(f"{path}: {table} must be a table")
        for key in asked:
            _known(key, ("expect", "disable"), f"{path}: [{table}] has no {key}")
        expect, disable = asked.get("expect", {}), asked.get("disable", [])
        if not isinstance(expect, dict) or not all(isinstance(one, dict) for one in expect.values()):
            raise SuiteError(f'{path}: [{table}.expect."NAME"] must be a table with class and arguments')
        if not isinstance(disable, list) or not all(isinstance(name, str) for name in disable):
            raise SuiteError(f"{path}: [{table}] disable must be a list of names")
        changes[table] = Changes(expect, disable)
    return changes


def changed(
    table: str, built_in: "Iterable[Expectation]", changes: Changes, others: Collection[str] = ()
) -> "list[Expectation]":
    """The suite of a table: what is built in, as the user changed it. `others` are names of expectations that are built
    in, too, but not asked this time. Raises `SuiteError`."""
    suite = {expectation.meta["name"]: expectation for expectation in built_in}
    for name in changes.disable:
        _known(name, {*suite, *others}, f'suites: [{table}] disables "{name}", which there is not')
        suite.pop(name, None)
        if name in changes.expect:
            raise SuiteError(f'suites: [{table}] has "{name}" and disables it')
    for name, asked in changes.expect.items():
        suite[name] = _made(table, name, asked)
    return list(suite.values())


def _made(table: str, name: str, asked: Mapping[str, Any]) -> "Expectation":
    from great_expectations import expectations as gxe

    where = f'suites: {table} "{name}"'
    arguments = dict(asked)
    for argument in _LISTS:
        if not isinstance(arguments.get(argument, []), list):
            raise SuiteError(f"{where}: {argument} must be a list")
    kind = arguments.pop("class", None)
    classes = {one for one in dir(gxe) if one.startswith("Expect") and one != "Expectation"} - _OTHER_TABLES
    _known(kind, classes, f"{where}: {f'there is no class {kind}' if kind else 'class is missing'}")
    for argument in sorted(_OURS & arguments.keys()):
        raise SuiteError(f"{where}: {argument} is not to be set")
    for column in _columns(arguments):
        _known(column, COLUMNS[table], f"{where}: there is no column {column}")
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise SuiteError(f"{where}: min_value {low} is above max_value {high}")
    for pattern in (arguments.get("regex"), *arguments.get("regex_list", ())):
        try:
            re.compile("" if pattern is None else pattern)
        except (re.error, TypeError) as error:
            raise SuiteError(f"{where}: the expression {pattern} does not compile: {error}") from error
    if "row_condition" in arguments:
        arguments.setdefault("condition_parser", "pandas")
    try:
        return getattr(gxe, str(kind))(**arguments, meta={"name": name})
    except ValueError as error:  # pydantic's, of the version that Great Expectations carries
        problems: list[dict[str, Any]] = getattr(error, "errors", list)()
        said = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems) or str(error)
        raise SuiteError(f"{where}: {said}") from error


def _columns(arguments: Mapping[str, Any]) -> list[Any]:
    named = [arguments[key] for key in ("column", "column_A", "column_B") if key in arguments]
    return [*named, *arguments.get("column_list", ()), *arguments.get("column_set", ())]


def _known(name: object, names: Collection[str], said: str) -> None:
    """Raises `SuiteError` with the nearest names where `name` is none of them."""
    if not isinstance(name, str) or name not in names:
        near = difflib.get_close_matches(str(name), names, n=3) or sorted(names)
        raise SuiteError(f"{said}: {', '.join(near)}")
