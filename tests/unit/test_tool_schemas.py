"""Arguments of tool calls against their schemas, which are anybody's."""

import time
from typing import Any

import pytest

from ingest.tool_schemas import fits

CITY = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    ("arguments", "good"),
    [
        ({"city": "Rome"}, True),
        ({"city": "Rome", "days": 3}, True),
        ({}, False),
        ({"city": 3}, False),
        ({"city": "Rome", "days": 0}, False),
        ({"city": "Rome", "wind": True}, False),
    ],
)
def test_arguments_are_held_against_their_schema(arguments: dict, good: bool) -> None:
    assert fits(arguments, CITY) is good


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"required": True}}},
        {"properties": {"a": {"type": "any"}}},
        {"properties": 3},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#"},
        {"properties": {"a": {"multipleOf": 0}}},
        {"not": {"properties": {"a": {"pattern": "^b"}}}},
        {"patternProperties": {"^a": True}, "additionalProperties": False},
        {"items": [{"type": "string"}]},
    ],
)
def test_what_cannot_be_judged_fits(schema: dict) -> None:
    assert fits({"a": {"b": 1}} if "$ref" not in schema else {}, schema)


def test_a_schema_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("urllib.request.urlopen", fetched)
    assert fits({"a": 1}, {"properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"$defs": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}}}
        | {"properties": {"a": {"$ref": "#/$defs/a"}}},
        {
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
            | {"d60": {"type": "null"}}
        }
        | {"$ref": "#/$defs/d0"},
    ],
)
def test_no_schema_takes_long(schema: dict) -> None:
    """Each would take years: the bound is counted, not timed, and the time here only has to end."""
    begun = time.monotonic()
    assert fits({"a": "a" * 60 + "!"}, schema)
    assert time.monotonic() - begun < 300
