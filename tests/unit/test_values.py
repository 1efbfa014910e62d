"""How many values a body has: what is refused unread has too many, and texts are none."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.dialects import values
from serving.gateway.dialects.base import parse_object
from serving.gateway.dialects.values import MOST_VALUES, refuse_unread
from serving.gateway.errors import TooLarge

LETTERS = st.text('a"\\:{[,\u00e9', max_size=4)
JSON = st.recursive(
    st.integers(0, 9) | LETTERS, lambda inner: st.lists(inner) | st.dictionaries(LETTERS, inner), max_leaves=30
)


def count(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(count, inner))


@given(JSON, st.booleans(), st.integers(1, 12))
def test_what_is_refused_unread_has_too_many(value: object, ascii: bool, most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(values, "MOST_VALUES", most)
        with suppress(TooLarge):
            refuse_unread(json.dumps(value, ensure_ascii=ascii).encode())
            return
        assert count(value) > most


@pytest.mark.parametrize("part", ["{}", "[]", '{"a":1}', '"a"', '""', r'{"\\":"\""}'])
def test_many_of_what_costs_most_to_read_are_refused_unread(part: str) -> None:
    """14 MB of fields took three seconds to read, in which nobody else was served."""
    with pytest.raises(TooLarge):
        refuse_unread(f"[{','.join([part] * (2 * MOST_VALUES + 2))}]".encode())
    with pytest.raises(TooLarge):
        parse_object(json.dumps({str(number): 1 for number in range(MOST_VALUES + 1)}).encode())


def test_texts_and_numbers_are_not_refused_unread() -> None:
    refuse_unread(json.dumps({"a": r'{"b":[1,"\"]}' * MOST_VALUES}).encode())
    refuse_unread(json.dumps({"prompt": list(range(2 * MOST_VALUES))}).encode())
