"""The answer's own id and model get the caller's names; whatever else has the same words keeps them."""

import json

import pytest

from serving.gateway.renames import Renames

NAMES = {"model": ("policy", 'gpt "9"'), "id": ("chatcmpl-1", "msg_1")}
OURS = {"model": 'gpt "9"', "id": "msg_1"}
THEIRS = {"model": "policy", "id": "chatcmpl-1"}
WRITTEN: dict = {**THEIRS, "deep": [{**THEIRS}], "text": json.dumps(THEIRS), "n": 1.0}
"""What the model wrote, or the caller sent."""


def event(data: dict, name: str = "", **how) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data, **how).encode() + b"\n\n"


def read(events: bytes) -> list[dict]:
    return [json.loads(line[6:]) for line in events.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize("how", [{"separators": (",", ":")}, {}])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({**THEIRS, "choices": [WRITTEN]}, {**OURS, "choices": [WRITTEN]}),
        ({"content": [WRITTEN], **THEIRS}, {"content": [WRITTEN], **OURS}),
        ({"id": "chatcmpl-1", "content": WRITTEN}, {"id": "msg_1", "content": WRITTEN}),
        ({"message": {"content": [WRITTEN], **THEIRS}}, {"message": {"content": [WRITTEN], **OURS}}),
        ({"response": {**THEIRS, "metadata": WRITTEN}}, {"response": {**OURS, "metadata": WRITTEN}}),
        ({"response": {"tools": [WRITTEN], **THEIRS}}, {"response": {"tools": [WRITTEN], **OURS}}),
        ({"item": WRITTEN, "message": None}, {"item": WRITTEN, "message": None}),
        ({"model": "another", "choices": [WRITTEN]}, {"model": "another", "choices": [WRITTEN]}),
        ({"a\\": [], "delta": WRITTEN, "model": "policy"}, {"a\\": [], "delta": WRITTEN, "model": OURS["model"]}),
    ],
)
def test_only_the_answers_own_fields_are_renamed(theirs: dict, ours: dict, how: dict) -> None:
    renamed = Renames(NAMES)
    assert json.loads(renamed(json.dumps(theirs, **how).encode())) == ours
    stream = event(WRITTEN["deep"][0] | {"delta": WRITTEN}, **how) + event(theirs, "x", **how) + b"data: [DONE]\n\n"
    assert read(renamed(stream)) == [OURS | {"delta": WRITTEN}, ours]
    assert renamed(stream).count(b"\n") == stream.count(b"\n")


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"policy"',
        b'{"choices":[],"model":"policy",}',
        b'{"message":["policy"]}',
        b'{"deep":' + b"[" * 5000 + b'"policy"' + b"]" * 5000 + b"}",
        b'data: "policy"\n\n',
        b': {"model":"policy"}\n\n',
        b'{"choices":[1.0, 2],"model":"other"}',
    ],
)
def test_what_is_no_answer_passes_as_it_is(data: bytes) -> None:
    assert Renames(NAMES)(data) == data


def test_other_values_stay_byte_for_byte() -> None:
    data = b'{"choices":[1.0e3 , {"\\u0041":"\\/"}],"model":"policy"}'
    assert Renames({"model": ("policy", "m")})(data) == data.replace(b'"policy"', b'"m"')
    assert Renames({})(data) is data
