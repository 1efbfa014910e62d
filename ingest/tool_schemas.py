"""Whether a call's arguments fit the schema that its tool was offered with.

Schemas come from callers, in whatever draft and with whatever mistakes, and one caller's must not hold up the learning
from all the others. So a judgement is bounded in time, fetches nothing, and runs no regular expression of a caller:
keywords that need one are passed over, and with them those that would turn a passed-over one into a refusal (`not`,
`if`). What cannot be judged fits.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import referencing.exceptions
from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, ValidationError
from jsonschema.validators import create
from referencing.jsonschema import EMPTY_REGISTRY

BUDGET = 5_000
"""Keywords of one judgement, a quarter of a second's work. A few lines of schema could name themselves a billion
times."""
QUOTED = 1000
"""Characters that cost as much as a keyword: lists in a schema are gone through, and errors quote the arguments."""

_JUDGED = (
    *("type", "enum", "const", "required", "properties", "prefixItems", "allOf", "anyOf", "$ref"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
_UNUSABLE = (
    *(referencing.exceptions.Unresolvable, UnknownType, RecursionError),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
)
_STANDARD = Draft202012Validator.VALIDATORS
_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _Budget(threading.local):
    left = 0.0
    quote = 0.0

    def spend(self, cost: float) -> None:
        self.left -= cost
        if self.left < 0:
            raise ValueError("the schema is too much to judge")


_budget = _Budget()


def _counted(keyword: _Keyword) -> _Keyword:
    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _budget.spend(1 + (len(value) / QUOTED if isinstance(value, list | dict) else 0))
        for error in keyword(validator, value, instance, schema) or ():
            _budget.spend(_budget.quote)
            yield error

    return judge


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if "patternProperties" not in schema:
        yield from _STANDARD["additionalProperties"](validator, allowed, instance, schema) or ()


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(items, list):  # a list of schemas is an older draft's `prefixItems`
        yield from _STANDARD["items"](validator, items, instance, schema) or ()


_keywords: dict[str, _Keyword] = {name: _STANDARD[name] for name in _JUDGED} | {
    "oneOf": _STANDARD["anyOf"],
    "additionalProperties": _additional,
    "items": _items,
}
_Validator = create(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators={name: _counted(keyword) for name, keyword in _keywords.items()},
    type_checker=Draft202012Validator.TYPE_CHECKER,
)


def fits(arguments: dict, schema: dict) -> bool:
    """Whether the arguments break no rule of the schema that is judged here."""
    _budget.left, _budget.quote = BUDGET, len(msgspec.json.encode(arguments)) / QUOTED
    try:
        return _Validator(_without_dialect(schema), registry=EMPTY_REGISTRY).is_valid(arguments)
    except _UNUSABLE:
        return True


def _without_dialect(schema: object) -> Any:
    """The schema without `$schema`, at which jsonschema would go over to that draft's own keywords."""
    if isinstance(schema, dict):
        kept = ((k, v) for k, v in schema.items() if k != "$schema" or not isinstance(v, str))
        return {name: _without_dialect(value) for name, value in kept}
    return [_without_dialect(value) for value in schema] if isinstance(schema, list) else schema
