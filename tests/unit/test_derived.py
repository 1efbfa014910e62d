"""Derived columns: what the join reads of a turn's texts is worked out when the turn lands."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from ingest.config import ImplicitSettings
from ingest.derived import RESULT_LENGTH, SAID_LENGTH, Derived, derive
from ingest.implicit import is_error
from ingest.lake import SCHEMAS, LakeError, open_table
from tests.conversations import OPENING, calls, result, says, talk, user
from tests.lakes import as_event


def derived(messages: list[dict], answer: dict | None, **changes: Any) -> Derived:
    return derive(as_event(talk("t", messages, answer, 0, **changes)))


FOLLOWED = [*OPENING, calls(), result("Error: no such city"), result("sunny"), user("That's wrong.")]


def test_a_turn_that_follows_tells_what_came_before_it() -> None:
    first, second = derived(OPENING, calls()), derived(FOLLOWED, says("Sorry."))
    assert first.answer_hash == second.parent_hash is not None
    assert (first.calls, first.tail_said, first.tail_failed, first.tail_results) == ("valid", None, None, None)
    assert (second.calls, second.tail_said, second.tail_failed) == (None, "That's wrong.", False)
    assert second.tail_results == ["Error: no such city", "sunny"]
    assert derived(FOLLOWED, None).parent_hash == first.answer_hash


def test_equal_prompts_have_one_digest_and_no_prompt_has_none() -> None:
    one, same, other, none = (derived(OPENING, None, prompt_ids=ids) for ids in (b"1234", b"1234", b"1235", b""))
    assert one.prompt_digest == same.prompt_digest != other.prompt_digest
    assert none.prompt_digest is None


@pytest.mark.parametrize("out", [{"arm": "evaluation"}, {"trainable": False, "untrainable_reason": "opted out"}])
def test_no_text_is_read_of_who_opted_out(out: dict) -> None:
    told = derived(FOLLOWED, calls(), **out)
    assert (told.calls, told.tail_said, told.tail_failed, told.tail_results) == (None,) * 4
    assert told.parent_hash is not None


def test_what_was_redacted_is_not_judged() -> None:
    assert derived(OPENING, calls('{"city":"[REDACTED:email]",}')).calls == "valid"
    failed = derived(OPENING, None, request="", prompt_ids=b"")
    assert failed[:1] + failed[2:] == (None,) * 8


@pytest.mark.parametrize("finish", ["abort", "error", "engine_lost"])
def test_calls_of_an_answer_that_was_cut_short_are_not_judged(finish: str) -> None:
    assert derived(OPENING, calls("{"), finish=finish).calls is None


@pytest.mark.parametrize(
    ("metadata", "kept"),
    [
        ({"kind": "howto", "none": None}, {"kind": "howto"}),
        ({"n": 1.0, "deep": {"a": [1]}, "yes": True}, {"n": "1.0", "deep": '{"a":[1]}', "yes": "true"}),
        ({"long": "x" * 1000}, {"long": "x" * 512}),
        ({}, None),
        ("text", None),
    ],
)
def test_metadata_is_kept_as_strings(metadata: Any, kept: dict | None) -> None:
    told = derived(OPENING, None, request=json.dumps({"metadata": metadata}, separators=(",", ":"))).metadata
    assert (told and json.loads(told)) == kept


def test_texts_are_kept_as_short_as_the_rules_allow() -> None:
    told = derived([*OPENING, calls(), result("x" * 10_000), user("y" * 10_000)], None)
    assert (told.tail_results, told.tail_said) == (["x" * RESULT_LENGTH], "y" * SAID_LENGTH)


TEXTS = st.one_of(
    st.text(),
    st.sampled_from(["Error: no", "  Error", "Errors: 0", '{"error":"no"}', '{"error":null,"a":1}', '{"is_error":1}']),
    st.dictionaries(st.sampled_from(["error", "isError", "rows"]), st.one_of(st.none(), st.booleans(), st.text())).map(
        json.dumps
    ),
)


@given(TEXTS)
def test_what_is_kept_of_a_result_is_judged_as_the_whole(text: str) -> None:
    told = derived([*OPENING, calls(), result(text)], None)
    assert [is_error(kept, ImplicitSettings()) for kept in told.tail_results or []] == [
        is_error(text, ImplicitSettings())
    ]


@given(st.sampled_from(["chat", "completions", "messages", "responses", "new"]), st.text(), st.text())
def test_whatever_the_texts_are_nothing_is_raised(dialect: str, request: str, answer: str) -> None:
    for text in (request, f'{{"messages":{request}}}', '{"messages":[{"role":[]}],"tools":[{"name":{}}]}'):
        for said in (answer, f'{{"tool_calls":{answer}}}', f'{{"content":[{{"type":"tool_use","name":{answer}}}]}}'):
            derive(as_event(talk("t", FOLLOWED, None, 0) | {"dialect": dialect, "request": text, "answer": said}))
    derived(FOLLOWED, {"tool_calls": [{"function": {"name": {}}}]}, dialect=dialect)


def test_a_lake_of_another_version_is_told(tmp_path: Path) -> None:
    old = SCHEMAS["turns"].remove(SCHEMAS["turns"].get_field_index("calls"))
    DeltaTable.create(tmp_path / "turns", schema=pa.schema(old))
    with pytest.raises(LakeError, match="has no calls"):
        open_table(tmp_path, "turns")
