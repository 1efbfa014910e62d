"""The conversation names itself: one session, each turn under its parent, whatever harnesses reshape."""

import pytest

from serving.gateway.sessions import MOST_ARGUMENTS, Conversation, canonical, native_session, session_hash

SECRET = b"secret"
SYSTEM, HELLO = {"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}],
}


def turn(messages: list[dict], answer: dict | None, owner: str = "key") -> tuple[str, tuple[str, ...]]:
    return Conversation(SECRET, owner, messages).close(answer)


def test_turns_of_one_conversation_share_a_session_and_find_their_parent() -> None:
    session1, hashes1 = turn([SYSTEM, HELLO], ANSWER)
    session2, hashes2 = turn([SYSTEM, HELLO, ANSWER, HELLO], CALL)
    session3, hashes3 = turn([SYSTEM, HELLO, ANSWER, HELLO, CALL, {"role": "tool", "content": "4"}], ANSWER)
    assert session1 == session2 == session3
    assert hashes1[-1] in hashes2[:-2]
    assert hashes2[-1] in hashes3[:-2]
    assert hashes1[-1] in hashes3[:-2]


def test_equal_openings_part_at_their_answers_and_other_owners_are_others() -> None:
    other = {"role": "assistant", "content": "good day"}
    assert turn([HELLO], ANSWER)[0] != turn([HELLO], other)[0]
    assert turn([HELLO], ANSWER)[0] != turn([HELLO], ANSWER, owner="other key")[0]


def test_arguments_are_read_up_to_a_bound_and_a_turn_beyond_it_still_finds_its_parent() -> None:
    def call(arguments: str) -> dict:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    long = call(" " * (MOST_ARGUMENTS - 8) + '{"a": 1}')
    for before, same in (([HELLO, long], False), ([HELLO, call("{}")], True)):
        first, spaced, again = (turn([*before, HELLO], call(text))[1] for text in ('{"a":1}', '{"a": 1}', '{"a":1}'))
        assert (first == spaced) is same
        assert first == again
        assert first[-1] in turn([*before, HELLO, call('{"a":1}'), HELLO], ANSWER)[1][:-2]
    assert turn([HELLO, long], ANSWER) == turn([HELLO, call('{"a":1}')], ANSWER)


def test_a_regenerated_turn_shares_all_but_the_last_hash() -> None:
    first, again = turn([HELLO, ANSWER, HELLO], ANSWER)[1], turn([HELLO, ANSWER, HELLO], CALL)[1]
    assert first[:-1] == again[:-1]
    assert first[-1] != again[-1]


def test_what_harnesses_move_between_turns_changes_nothing() -> None:
    blocks = {"role": "user", "content": [{"type": "text", "text": "hel", "cache_control": {}}, {"text": "lo"}]}
    assert canonical(blocks) == canonical(HELLO)
    resent = {
        "role": "assistant",
        "content": "",
        "reasoning": "left out",
        "tool_calls": [{"id": "other", "index": 0, "function": {"arguments": '{"b":2,"a":1}', "name": "f"}}],
    }
    assert canonical(resent) == canonical(CALL)
    assert canonical({"role": "assistant", "content": None}) == canonical({"role": "assistant", "content": ""})
    reasoned = {"role": "assistant", "content": "<think>A greeting.</think>\n\nhi\n"}
    assert canonical(reasoned) == canonical(ANSWER) != canonical({**reasoned, "role": "user"})
    for spaced in (" hello\n", [{"type": "text", "text": "\n\n"}, {"type": "text", "text": "hello "}]):
        assert canonical({"role": "user", "content": spaced}) == canonical(HELLO)
    assert canonical(CALL) != canonical({"role": "assistant", "content": None})


def test_the_opening_is_stable_over_the_conversation() -> None:
    assert (
        Conversation(SECRET, "k", [SYSTEM, HELLO]).opening
        == Conversation(SECRET, "k", [SYSTEM, HELLO, ANSWER, HELLO]).opening
    )


def test_a_turn_without_an_answer_still_has_a_session() -> None:
    session, hashes = turn([HELLO], None)
    assert hashes == (session,)


def test_odd_messages_are_hashed_and_never_fail() -> None:
    for message in (
        {"role": "user", "content": [1, None, {"type": "image_url"}]},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": [1, {}, {"function": 2}, {"function": {"arguments": "{"}}]},
        {"role": "user", "content": {"a": 1}},
        {"role": "user"},
    ):
        assert canonical(message)


def test_names_are_keyed() -> None:
    assert session_hash(b"one", "s") != session_hash(b"two", "s")
    assert "s-17" not in session_hash(b"one", "s-17")


@pytest.mark.parametrize(
    ("sent", "name"), [(b"s-1", "s-1"), ("Größe 😀".encode(), "Größe 😀"), (b"Gr\xf6\xdfe", "Größe"), (b"", None)]
)
def test_a_session_is_named_as_feedback_and_erasures_name_it(sent: bytes, name: str | None) -> None:
    class Sent:
        def header(self, header: bytes) -> str | None:
            return sent.decode("latin-1") if header == b"x-everloop-session" else None

    assert native_session(Sent()) == name  # type: ignore[arg-type]
