"""What a dialect lets through, repairs and refuses."""

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import INTERNAL, Ask
from serving.gateway.dialects.values import MOST_VALUES
from serving.gateway.errors import BadRequest, Forbidden, TooLarge
from serving.gateway.sessions import Conversation
from tests.odd_json import KEYS, NESTED

CHAT, COMPLETIONS = DIALECTS["/v1/chat/completions"], DIALECTS["/v1/completions"]
MESSAGES = [{"role": "user", "content": "hi"}]


def read(body: object, *, admin: bool = False, dialect=CHAT) -> Ask:
    return dialect.read(json.dumps(body).encode(), admin=admin, max_samples=4, media_domains=("images.example",))


def sent(ask: Ask, *, longest: int = 100, media: bool = True, pinned: dict | None = None, dialect=CHAT) -> dict:
    body = dialect.engine_body(
        ask, served_model="policy", turn_id="turn-1", longest=longest, media=media, salt="salt", pinned=pinned or {}
    )
    return json.loads(body)


def test_known_fields_go_on_and_unknown_ones_are_counted() -> None:
    ask = read({"model": "m", "messages": MESSAGES, "temperature": 0.5, "surprise": 1, "store": True, "user": "u"})
    assert sent(ask) == {"messages": MESSAGES, "temperature": 0.5, "model": "policy", "cache_salt": "salt"}
    assert ask.dropped == ["surprise"]
    assert ask.user == "u"
    assert ask.model == "m"


def test_a_model_without_eyes_reads_that_there_was_an_image() -> None:
    text, image = (
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    )
    ask = read({"messages": [{"role": "user", "content": [text, image, {"type": "file", "file": {}}]}]})
    left_out = {"type": "text", "text": "[file left out]"}
    assert sent(ask)["messages"][0]["content"] == [text, image, left_out]
    assert sent(ask, media=False)["messages"][0]["content"][1] == {"type": "text", "text": "[image_url left out]"}
    assert ask.dropped == ["messages[0].content[2]", "messages[0].content[1]"]
    assert "data:image/png" in ask.recorded


def parts(dialect, *content: dict) -> dict:
    """A body of chat or Responses whose only message has these parts."""
    name = "input" if dialect.path == "/v1/responses" else "messages"
    return {name: [{"role": "user", "content": list(content)}]}


STEERED = [CHAT, DIALECTS["/v1/responses"]]
EMBEDDED = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil", "new_embeds")


@pytest.mark.parametrize("dialect", STEERED, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", EMBEDDED)
def test_parts_that_carry_embeddings_need_a_role(name: str, dialect) -> None:
    for part in ({"type": name, "data": "AA"}, {name: "AA"}, {"type": "input_text", "text": "x", name: None}):
        with pytest.raises(Forbidden, match=f"`{name}` steers the engine itself"):
            read(parts(dialect, {"type": "text", "text": "x"}, part), dialect=dialect)
    assert read(parts(dialect, {"type": name, "data": "AA"}), dialect=dialect, admin=True)


def test_an_admins_embeddings_reach_an_engine_that_takes_them() -> None:
    content = [{"type": name, name: "AA"} for name in EMBEDDED]
    ask = read(parts(CHAT, *content), admin=True)
    assert sent(ask)["messages"][0]["content"] == content
    kept = sent(ask, media=False)["messages"][0]["content"]
    assert [part for part in kept if part["type"] != "text"] == [content[3], content[5]]


@pytest.mark.parametrize("dialect", STEERED, ids=lambda dialect: dialect.name)
def test_a_mediums_identity_in_the_engines_cache_is_no_callers(dialect) -> None:
    """Who names another tenant's medium by its identity would be answered about it."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    body = parts(dialect, {"type": "text", "text": "x"}, {**image, "uuid": "shared"})
    ask = read(body, dialect=dialect)
    (name,) = [name for name in ("messages", "input") if name in body]
    assert sent(ask, dialect=dialect)[name][0]["content"][1] == image
    assert ask.dropped == [f"{name}[0].content[1].uuid"]
    assert "shared" in ask.recorded
    admin = sent(read(body, dialect=dialect, admin=True), dialect=dialect)
    assert admin[name][0]["content"][1]["uuid"] == "shared"


@pytest.mark.parametrize("part", [{"image_url": None}, {"image_url": "data:,"}, {"type": "input_image"}])
def test_a_part_without_a_type_is_known_by_its_field(part: dict) -> None:
    kind = part.get("type", "image_url")
    ask = read(parts(CHAT, part))
    assert sent(ask, media=False)["messages"][0]["content"] == [{"type": "text", "text": f"[{kind} left out]"}]


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        ("x", True),
        (None, True),
        ([], True),
        ([{"type": "text", "text": "x"}], True),
        ([{"type": "text", "text": "x", "uuid": "shared"}], False),
        ([{"type": "text", "uuid": "shared"}], False),
        ([{"text": "x", "image_url": None}], False),
        ([{"type": "text", "text": "x"}, {"type": "file", "file": {}}], False),
    ],
)
def test_only_a_conversation_of_text_alone_goes_on_unseen(content: object, plain: bool) -> None:
    messages = [*MESSAGES, {"role": "user", "content": content}]
    ask = read({"messages": messages})
    assert ask.plain == plain
    assert (sent(ask, media=False)["messages"] == messages) == plain
    assert (ask.dropped == []) == plain


def test_the_record_names_nobody_and_keeps_metadata() -> None:
    ask = read(
        {"model": "m", "messages": MESSAGES, "user": "anna", "safety_identifier": "a", "metadata": {"kind": "x"}}
    )
    assert "anna" not in ask.recorded
    assert json.loads(ask.recorded)["metadata"] == {"kind": "x"}


def test_limits_are_clamped_to_the_context() -> None:
    body = {"messages": MESSAGES, "max_tokens": 64000, "max_completion_tokens": 50}
    assert sent(read(body))["max_tokens"] == 100
    assert sent(read(body))["max_completion_tokens"] == 50
    assert sent(read(body), longest=0)["max_tokens"] == 64000


def test_pinned_sampling_overrides_the_caller() -> None:
    ask = read({"messages": MESSAGES, "temperature": 0.2, "max_completion_tokens": 90, "top_k": 5})
    pinned = {"temperature": 1.0, "top_k": -1.0, "max_tokens": 32.0}
    body = sent(ask, pinned=pinned)
    assert body["temperature"] == 1.0
    assert body["top_k"] == -1
    assert body["max_tokens"] == 32
    assert "max_completion_tokens" not in body
    assert isinstance(body["max_tokens"], int)


@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_engine_internal_fields_need_a_role(name: str) -> None:
    with pytest.raises(Forbidden, match=name):
        read({"messages": MESSAGES, name: "x"})
    assert sent(read({"messages": MESSAGES, name: "x"}, admin=True))[name] == "x"


def test_a_callers_own_ids_are_dropped_whatever_its_role() -> None:
    ask = read({"messages": MESSAGES, "request_id": "mine", "session_id": "s"}, admin=True)
    assert "request_id" not in sent(ask)
    assert "session_id" not in sent(ask)


@pytest.mark.parametrize(
    "body",
    [
        [],
        "x",
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": [1]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": 1}]},
        {"messages": MESSAGES, "model": 3},
        {"messages": MESSAGES, "stream": "yes"},
        {"messages": MESSAGES, "n": 0},
        {"messages": MESSAGES, "n": 5},
        {"messages": MESSAGES, "n": True},
        {"messages": MESSAGES, "n": 1.5},
        {"messages": MESSAGES, "max_tokens": "many"},
        {"messages": MESSAGES, "max_tokens": -1},
        {"messages": MESSAGES, "user": {"a": 1}},
        {"messages": MESSAGES, "use_beam_search": True},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"role": "user", "content": [{"image_url": {"url": "http://10.0.0.1/x"}}]}]},
        {"messages": [{"role": "user", "content": [{"image_url": "file:///etc/passwd"}]}]},
        {"messages": [{"role": "user", "content": [{"image_url": {"url": "http://[bad"}}]}]},
        {"messages": [{"role": "user", "content": [{"image_url": {"url": 7}}]}]},
    ],
)
def test_bad_chat_requests_are_refused(body: object) -> None:
    with pytest.raises(BadRequest):
        read(body)


def test_allowed_and_inline_media_pass() -> None:
    for url in ("https://images.example/cat.png", "data:image/png;base64,AAAA"):
        read({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example\\@10.0.0.1/",
        "http://10.0.0.1\\@images.example/",
        "http://images.example@10.0.0.1/",
        "http://10.0.0.1#@images.example/",
        "http://images.example\t.evil.example/",
        "http://images.example .evil.example/",
        "http://images.example\u3002evil.example/",
        "http://images.example%2eevil.example/",
        "https://images.example.evil.example/",
        "ftp://images.example/x",
        "//images.example/x",
    ],
)
def test_a_url_that_parsers_may_read_differently_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        read({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"a":"\xff"}', b"[" * 100_000, b'{"messages":' + b"[" * 9_000])
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        CHAT.read(raw, admin=False, max_samples=1)


def values(dialect, count: int) -> bytes:
    """A body of this dialect with so many values in the place of its conversation."""
    name = {"/v1/responses": "input", "/v1/completions": "stop"}.get(dialect.path, "messages")
    one = b'{"role":"user","content":"{,[{,["},'
    return b'{"prompt":"x","%b":[%b"x"]}' % (name.encode(), one * (count // 3))


@pytest.mark.parametrize("dialect", list(DIALECTS.values()), ids=lambda dialect: dialect.name)
def test_a_body_of_too_many_values_is_refused_in_words(dialect) -> None:
    """440,000 messages of a few letters each are within the limit of a body's size, and would stop all others."""
    with pytest.raises(TooLarge, match="more than 100,000 values") as refused:
        dialect.read(values(dialect, MOST_VALUES + 3), admin=True, max_samples=1)
    assert b"100,000" in dialect.error_body(refused.value)


def test_long_conversations_token_ids_and_texts_are_no_values_too_many() -> None:
    many = MOST_VALUES // 4
    assert len(read({"messages": MESSAGES * many}).messages) == many
    assert read({"prompt": list(range(MOST_VALUES * 2))}, dialect=COMPLETIONS).samples == 1
    assert read({"messages": [{"role": "user", "content": "{," * MOST_VALUES}]}).samples == 1


def test_completion_prompts() -> None:
    for prompt, samples in (("x", 1), ([1, 2], 1), (["x", "y"], 2), ([[1], [2], [3]], 3)):
        assert read({"prompt": prompt}, dialect=COMPLETIONS).samples == samples
    for prompt in (None, [], 3, [[]], [None], ["x", 1], [-1], [True], {"a": 1}, [["x"]]):
        with pytest.raises(BadRequest):
            read({"prompt": prompt}, dialect=COMPLETIONS)
    with pytest.raises(BadRequest):
        read({"prompt": ["x", "y", "z"], "n": 2}, dialect=COMPLETIONS)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    *("model", "messages", "prompt", "input", "n", "stream", "max_tokens", "user", "metadata", "tools", "stop"),
    *("system", "tool_choice", "thinking", "output_config", "instructions", "include", "text", "service_tier"),
)
ITEMS = st.lists(st.dictionaries(st.sampled_from(KEYS), NESTED, min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=250)
@given(
    st.dictionaries(st.sampled_from(FIELDS), ITEMS | NESTED | JSON, max_size=7),
    st.sampled_from(list(DIALECTS.values())),
    st.booleans(),
)
def test_whatever_a_body_holds_it_is_read_or_refused(body: dict, dialect, admin: bool) -> None:
    with contextlib.suppress(BadRequest, Forbidden):
        ask = dialect.read(json.dumps(body).encode(), admin=admin, max_samples=16)
        Conversation(b"secret", "owner", ask.messages).close(None)
        sent(ask, dialect=dialect, media=False)


DEEP = {
    "/v1/chat/completions": ('"messages":[{"role":"user","content":[%s]}]', '"messages":[{"role":"user"}],"tools":%s'),
    "/v1/completions": ('"prompt":"x","stop":%s', '"prompt":%s'),
    "/v1/responses": ('"input":[{"type":"other","more":%s}]', '"input":[{"type":"additional_tools","tools":[%s]}]'),
    "/v1/messages": ('"messages":[{"role":"user","content":[%s]}]', '"messages":[{"role":"user","content":%s}]'),
}
LEVELS = (
    ('{"type":"tool_result","content":[', "]}"),
    ('{"type":"namespace","name":"functions","tools":[', "]}"),
    ("[", "]"),
)


@pytest.mark.parametrize("path", DEEP)
def test_however_deep_a_body_is_nested_it_is_read_or_refused(path: str) -> None:
    """Each step has less of the stack left than the one before: no depth is read that a later one cannot walk."""
    dialect, read_any = DIALECTS[path], False
    for depth, (begin, end), field in itertools.product(range(20, 1000, 5), LEVELS, DEEP[path]):
        with contextlib.suppress(BadRequest):
            ask = dialect.read(
                b"{%b}" % (field % (begin * depth + end * depth)).encode(), admin=False, max_samples=1 << 20
            )
            Conversation(b"secret", "owner", ask.messages)
            sent(ask, dialect=dialect, media=False)
            read_any = True
    assert read_any


def test_however_deep_a_tools_arguments_are_nested_they_are_read() -> None:
    for depth in range(20, 1000):
        call = {"function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
        Conversation(b"secret", "owner", [{"role": "assistant", "content": "", "tool_calls": [call]}])
