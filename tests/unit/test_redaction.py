"""What redaction finds, what it leaves alone, and what it refuses to look at."""

import json
import sys
import types
import typing

import pytest

from ingest.contracts.fleet import Redaction
from serving.config import RedactionSettings
from serving.patterns import PATTERNS
from serving.redaction import RedactionError, Redactor

ALL = Redactor(Redaction(patterns=tuple(PATTERNS)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("write to anna.müller+x@mail.example.co.uk today", "email"),
        ("4111 1111 1111 1111", "credit_card"),
        ("card 5555-5555-5555-4444, thanks", "credit_card"),
        ("card378282246310005.", "credit_card"),
        ("3782 822463 10005", "credit_card"),
        ("7 12 6011111111111117", "credit_card"),
        ("DE89 3704 0044 0532 0130 00 is mine", "iban"),
        ("gb82west12345698765432", "iban"),
        ("DE12 DE89370400440532013000", "iban"),
        ("+49 (0)30 1234567", "phone"),
        ("0049 30 1234567", "phone"),
        ("(212) 555-0199", "phone"),
        ("030/123 45 67", "phone"),
        ("sk-proj-abcdefghijklmnopqrstuvwx", "secret"),
        ("el-" + "aB3" * 14, "secret"),
        ("AKIAIOSFODNN7EXAMPLE", "secret"),
        ("ghp_" + "a1B2" * 9, "secret"),
        ("Authorization: Bearer abcdefghijklmnopqrst.uvw", "secret"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSM", "secret"),
        ("postgres://admin:hunter2@db/x", "secret"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nab==\n-----END RSA PRIVATE KEY-----", "secret"),
    ],
)
def test_what_is_found(text: str, name: str) -> None:
    found = ALL.text(text)
    assert f"[REDACTED:{name}]" in found
    assert len([c for c in found.replace(f"[REDACTED:{name}]", "") if c.isdigit()]) <= 4
    only = Redactor(Redaction(patterns=(name,)))
    assert f"[REDACTED:{name}]" in only.text(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "On 2024-05-06 at 12:30:00 we sold 1,234,567 of them for 4.99 @ noon",
        "4111111111111112",
        "0.12345678901234567",
        "DE89370400440532013001",
        "commit 8a27083a3d820f89396020053be2",
        "see @anna, a@b, and sk-short",
        "127.0.0.1:8700 and 10.000.000",
        "https://example.com/a:b@c",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert ALL.text(text) == text


def test_every_string_number_and_key_of_a_json_is_looked_at() -> None:
    text = json.dumps({"a": [4111111111111111, True, 1.5, None], "x@y.zz": {"b": ["1", "x@y.zz"]}})
    assert json.loads(ALL.json(text)) == {
        "a": ["[REDACTED:credit_card]", True, 1.5, None],
        "[REDACTED:email]": {"b": ["1", "[REDACTED:email]"]},
    }
    untouched = '{"a": 1}'
    assert ALL.json(untouched) is untouched
    assert ALL.json("") == ""


AT_A_LINES_START = {
    "secret": "sk-ant-REDACTME0123456789abcdef",
    "phone": "555-123-4567",
    "iban": "DE89370400440532013000",
    "credit_card": "4111111111111111",
    "email": "añna@example.org",
}


@pytest.mark.parametrize("name", AT_A_LINES_START)
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_string_that_is_json_itself_is_redacted_as_json(name: str, times: int, ascii_only: bool) -> None:
    """A tool call's arguments: a line break in them is a backslash and an n, which hides where a word begins."""
    found = AT_A_LINES_START[name]
    arguments = value = {"content": f"it says:\n{found}", "line": 1}
    for _ in range(times):
        value = {"arguments": json.dumps(value, ensure_ascii=ascii_only)}
    redacted = json.loads(ALL.json(json.dumps(value)))
    for _ in range(times):
        redacted = json.loads(redacted["arguments"])
    assert redacted == arguments | {"content": f"it says:\n[REDACTED:{name}]"}


@pytest.mark.parametrize("name", AT_A_LINES_START)
@pytest.mark.parametrize("times", [1, 2])
def test_a_cut_answers_arguments_are_searched_with_their_escapes_read(name: str, times: int) -> None:
    found = AT_A_LINES_START[name]
    written = json.dumps({"content": f'it says "\\":\n{found} ', "more": ""})
    for _ in range(times - 1):
        written = json.dumps({"inner": written})
    redacted = ALL.json(json.dumps({"arguments": written[:-4]}))
    assert f"[REDACTED:{name}]" in redacted
    for hidden in (found, json.dumps(found)[1:-1], json.dumps(json.dumps(found)[1:-1])[1:-1]):
        assert hidden not in redacted


def test_a_member_that_json_shows_once_of_two_is_found() -> None:
    twice = json.dumps({"arguments": r'{"a": "\nAKIAIOSFODNN7EXAMPLE", "a": "x"}'})
    assert "AKIA" not in ALL.json(twice)


@pytest.mark.parametrize("text", [r"\d{3}-\d{4} \u12 \\", "{not json", '["a\\n", 1]', '{"a": {"b": "\\u00e9\\ud83d"}}'])
def test_escapes_and_json_without_a_find_stay_as_they_are(text: str) -> None:
    whole = json.dumps({"content": text})
    assert ALL.json(whole) is whole


@pytest.mark.parametrize("parts", [("my key sk-ant-REDACT", "ME0123456789abcdef"), ("sk", "-ant-", "x" * 20)])
@pytest.mark.parametrize("plain", [True, False])
def test_what_is_split_over_adjacent_text_parts_is_found(parts: tuple[str, ...], plain: bool) -> None:
    content = [part if plain else {"type": "text", "text": part} for part in parts]
    redacted = json.loads(ALL.json(json.dumps({"role": "user", "content": content})))["content"]
    first, *others = redacted if plain else [part["text"] for part in redacted]
    assert first == parts[0][: -len("sk-ant-REDACT")] * (len(parts) == 2) + "[REDACTED:secret]"
    assert not any(others)


def test_of_parts_with_finds_of_their_own_only_what_is_surely_outside_is_kept() -> None:
    def after(*texts: str) -> list[str]:
        body = json.dumps({"content": [{"type": "text", "text": text} for text in texts]})
        return [part["text"] for part in json.loads(ALL.json(body))["content"]]

    both = "[REDACTED:secret][REDACTED:parts] of the key, goodbye"
    assert after("sk-ant-" + "a" * 20, "rest of the key,", " goodbye") == [both, "", ""]
    assert after("write to a@b.cc.", "Thanks.") == ["write to [REDACTED:email].[REDACTED:parts]", ""]
    assert after("write to a@b.cc.\n", "Thanks.") == ["write to [REDACTED:email].\n", "Thanks."]
    assert after("Hello.", "Thanks.") == ["Hello.", "Thanks."]


def test_strings_of_any_other_list_are_not_read_as_one() -> None:
    numbers = json.dumps({"enum": ["4111", "1111", "1111", "1111"]})
    assert ALL.json(numbers) is numbers


def test_own_expressions_and_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_redaction")
    module.names = lambda text: text.replace("Anna", "[name]")
    monkeypatch.setitem(sys.modules, "own_redaction", module)
    redactor = Redactor(Redaction(expressions={"order": r"\bORD-\d+"}, function="own_redaction:names"))
    assert redactor.text("Anna's ORD-123 für Ümit") == "[name]'s [REDACTED:order] für Ümit"


@pytest.mark.parametrize(
    ("redaction", "said"),
    [
        ({"patterns": ("passport",)}, "no pattern"),
        ({"expressions": {"x": "(a"}}, "x is none of RE2's"),
        ({"expressions": {"x": r"(?<=a)b"}}, "x is none of RE2's"),
        ({"expressions": {"x": "a*"}}, "matches nothing at all"),
        ({"expressions": {"Not good": "a"}}, "lower-case"),
        ({"function": "no_such_module:f"}, "cannot be imported"),
        ({"function": "json:no_such"}, "cannot be imported"),
        ({"function": "json:__name__"}, "no function"),
    ],
)
def test_what_cannot_be_applied_says_so(redaction: dict, said: str) -> None:
    with pytest.raises(RedactionError, match=said):
        Redactor(Redaction(**redaction))


def test_the_configurations_names_are_the_patterns() -> None:
    assert set(typing.get_args(typing.get_args(RedactionSettings.model_fields["patterns"].annotation)[0])) == set(
        PATTERNS
    )


def test_no_expression_and_no_text_takes_long() -> None:
    """Backtracking would take ages for the first, near misses for the others: they are counted, not timed."""
    assert Redactor(Redaction(expressions={"bad": r"(a+)+$"})).text("a" * 200_000 + "b").endswith("b")
    for text in ("4111 1111 1111 1112 " * 100_000, "DE12 3704 0044 0532 0130 00 " * 60_000):
        with pytest.raises(RedactionError, match="20000 matches"):
            ALL.text(text)
        with pytest.raises(RedactionError, match="20000 matches"):
            ALL.json(json.dumps([f"{n}: {text[:2000]}" for n in range(1000)]))


class Counting:
    def __init__(self, expression: typing.Any) -> None:
        self.expression, self.searches = expression, 0

    def search(self, text: bytes, at: int = 0) -> typing.Any:
        self.searches += 1
        return self.expression.search(text, at)


def test_texts_without_a_find_cost_one_search_together() -> None:
    """One search costs microseconds, whatever it searches: one for each of many numbers held both threads for long."""
    redactor = Redactor(Redaction(patterns=tuple(PATTERNS)))
    counting = [Counting(expression) for _, expression, _ in redactor._steps]
    redactor._steps = [(name, count, check) for (name, _, check), count in zip(redactor._steps, counting, strict=True)]
    body = json.dumps({"a": list(range(50_000)), "b": {f"k{n}": f"v{n}" for n in range(50_000)}})
    assert redactor.json(body) is body
    assert [count.searches for count in counting] == [1] * len(PATTERNS)
    redactor.json(body.replace("v77", "v77@example.org"))
    assert all(count.searches < 5000 for count in counting)


ALONE = [
    "",
    "a@b.cc",
    "x",
    "AKIAIOSFODNN7EXAMPLE",
    "sk-",
    "a" * 30,
    "4111 1111",
    "1111 1111",
    "4111111111111111",
    "+49 30",
]


@pytest.mark.parametrize("turned", range(len(ALONE)))
def test_texts_that_are_searched_together_give_what_each_gives_alone(turned: int) -> None:
    own = Redaction(
        patterns=tuple(PATTERNS),
        expressions={"all": r"(?s)x.*y", "none": r"sk[^q]*3", "edge": r"\Bq\B", "key": r"-----BEGIN[^@]*z"},
    )
    for redactor in (ALL, Redactor(own), Redactor(Redaction(expressions={"start": "^4111", "end": "(?m:a$)"}))):
        texts = [*ALONE[turned:], "qqq", "-----BEGIN PRIVATE KEY-----", "y3", *ALONE[:turned], "é@ü.de", "z"]
        assert json.loads(redactor.json(json.dumps(texts))) == [redactor.text(text) for text in texts]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1] * 250_001, "250000 values"),
        (json.dumps([1] * 250_001), "250000 values"),
        ({"content": [{"text": ""}] * 130_000}, "250000 values"),
        (r"\u005c" + "u005c" * 600_000, "characters to search"),
        ([f"a{n}@b.cc" for n in range(20_001)], "20000 matches"),
    ],
)
def test_a_record_that_would_take_too_much_is_refused(value: object, said: str) -> None:
    with pytest.raises(RedactionError, match=said):
        ALL.json(json.dumps(value))


def test_whoever_redacts_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be stopped from outside."""
    now, calls = [0.0], []

    def slow(text: str) -> str:
        calls.append(text)
        now[0] += 1.0
        return text

    module = types.ModuleType("own_redaction")
    module.slow = slow
    monkeypatch.setitem(sys.modules, "own_redaction", module)
    monkeypatch.setattr("serving.redaction.time.monotonic", lambda: now[0])
    redactor = Redactor(Redaction(function="own_redaction:slow"))
    with pytest.raises(RedactionError, match="too long"):
        redactor.json(json.dumps([f"text {n}" for n in range(1000)]), deadline=5.5)
    assert len(calls) == 6
    for anything in ("1", '"x"', '{"a": 1}', '["4111 1111 1111 1112"]'):
        with pytest.raises(RedactionError, match="too long"):
            ALL.json(anything, deadline=5.5)
