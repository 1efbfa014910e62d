"""What never reaches the log, who is not learned from, and what holds over several gateways."""

import json
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from ingest.contracts.feedback import Feedback
from ingest.contracts.ids import keyed_hash
from ingest.contracts.turn import Turn
from tests.integration.serving_stack import HASH_SECRET, Stack, running, wait_until

pytestmark = pytest.mark.integration
ADDRESS, ORDER, PLACEHOLDER = "anna@example.org", "ORD-4711", "[REDACTED:email]"
DESIRED = {"version": "base", "path": "/nowhere"}
REDACTION = {"patterns": ["email"], "expressions": {"order": "ORD-[0-9]+"}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("privacy")) as stack:
        stack.shared_key = stack.key()
        yield stack


def redact(stack: Stack, redaction: dict | None) -> None:
    body = {"name": "policy", "desired": DESIRED, "redaction": redaction}
    stack.control("PUT", "/v1/policies/policy", body).raise_for_status()
    stack.settle()


def ask(stack: Stack, said: str = "hello", *, key: str = "", port: int = 0, **more: object) -> httpx.Response:
    body = {"model": "policy", "messages": [{"role": "user", "content": said}], **more}
    url = f"http://127.0.0.1:{port or stack.gateway_port}/v1/chat/completions"
    return httpx.post(url, json=body, headers={"authorization": f"Bearer {key or stack.shared_key}"}, timeout=60)


def turn_id(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["x-everloop-turn-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_policy_redacts_reaches_the_engine_and_never_the_log(stack: Stack, stream: bool) -> None:
    redact(stack, REDACTION)
    answer = ask(stack, f"I am {ADDRESS}, about {ORDER}", stream=stream, n=2)
    for turn in stack.turns(turn_id(answer), 2):
        said = json.loads(turn.request)["messages"][0]["content"]
        assert said == f"I am {PLACEHOLDER}, about [REDACTED:order]"
        assert (turn.prompt_ids, turn.output_ids, turn.logprobs, turn.weight_versions) == (b"", b"", b"", ())
        assert (turn.trainable, turn.untrainable_reason) == (False, "redacted")
        assert turn.answer
    clean = ask(stack, "nothing to find", stream=stream)
    (turn,) = stack.turns(turn_id(clean))
    assert turn.trainable
    assert turn.output_ids
    assert stack.metrics()['everloop_untrainable_total{policy="policy",reason="redacted"}'] >= 2
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    asked = httpx.get(f"{engine}/stand-in").json()["requests"]
    assert any(ADDRESS in json.dumps(request) for request in asked)
    everything = b"".join(path.read_bytes() for path in (stack.home / "spool").rglob("*") if path.is_file())
    assert ADDRESS.encode() not in everything
    redact(stack, None)
    (turn,) = stack.turns(turn_id(ask(stack, "I am ben@example.net")))
    assert "ben@example.net" in turn.request
    assert turn.trainable


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": f"I am {ADDRESS}"}),
        ("/v1/responses", {"input": f"I am {ADDRESS}"}),
        ("/v1/messages", {"max_tokens": 8, "messages": [{"role": "user", "content": f"I am {ADDRESS}"}]}),
    ],
)
def test_every_format_is_redacted(stack: Stack, path: str, body: dict) -> None:
    redact(stack, REDACTION)
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    answer = httpx.post(stack.gateway_url + path, json={"model": "policy", **body}, headers=headers, timeout=60)
    (turn,) = stack.turns(turn_id(answer))
    assert f"I am {PLACEHOLDER}" in turn.request
    assert (turn.output_ids, turn.untrainable_reason) == (b"", "redacted")
    assert turn.answer
    redact(stack, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_secret_in_a_tool_calls_arguments_is_found_in_the_answer_and_when_it_comes_back(
    stack: Stack, path: str
) -> None:
    redact(stack, {"patterns": ["secret"]})
    arguments = {"content": "key:\nsk-ant-REDACTME0123456789abcdef"}
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    scripts = {"scripts": {"write it": [{"tool": "write", "arguments": arguments}]}}
    httpx.post(f"{engine}/stand-in", json=scripts).raise_for_status()
    call = {"id": "1", "type": "function", "function": {"name": "write", "arguments": json.dumps(arguments)}}
    back = {
        "/v1/chat/completions": {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]},
        "/v1/messages": {"messages": [{"role": "user", "content": json.dumps(arguments)}], "max_tokens": 8},
        "/v1/responses": {"input": json.dumps(arguments)},
    }
    said = {"messages": [{"role": "user", "content": "write it "}], "max_tokens": 400}
    if path == "/v1/responses":
        said = {"input": "write it "}
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    for body in (said, back[path]):
        url = stack.gateway_url + path
        answer = httpx.post(url, json={"model": "policy", **body}, headers=headers, timeout=60)
        (turn,) = stack.turns(turn_id(answer))
        assert "REDACTME" not in turn.request + turn.answer
        assert "key:" in turn.request + turn.answer
        assert (turn.prompt_ids, turn.output_ids, turn.untrainable_reason) == (b"", b"", "redacted")
    httpx.post(f"{engine}/stand-in", json={"scripts": {}}).raise_for_status()
    redact(stack, None)


def test_feedback_is_redacted_too(stack: Stack) -> None:
    redact(stack, REDACTION)
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    body = {"target": "turn", "id": "chatcmpl-x", "kind": "comment", "text": f"write to ben-{ADDRESS}"}
    answer = httpx.post(f"{stack.gateway_url}/v1/feedback", json=body, headers=headers, timeout=60)
    assert answer.status_code == 202
    chosen = answer.json()["feedback_id"]

    def recorded() -> list[Feedback]:
        return [event for event in stack.events() if isinstance(event, Feedback) and event.feedback_id == chosen]

    wait_until(recorded, "the feedback")
    assert recorded()[0].text == f"write to {PLACEHOLDER}"
    redact(stack, None)


def test_a_redaction_that_cannot_work_lets_no_text_pass(stack: Stack) -> None:
    redact(stack, {"function": "no_such_module:f"})
    (turn,) = stack.turns(turn_id(ask(stack, "pelican")))
    assert (turn.request, turn.answer, turn.output_ids) == ("", "", b"")
    assert turn.untrainable_reason == "redaction failed"
    assert "pelican" not in (stack.home / "gateway.log").read_text()
    redact(stack, None)


def test_a_subject_that_opted_out_is_not_learned_from_until_it_opts_in(stack: Stack) -> None:
    subject = keyed_hash(bytes.fromhex(HASH_SECRET), "subject", "anna")

    def reason_for(user: str) -> str | None:
        (turn,) = stack.turns(turn_id(ask(stack, user=user)))
        return turn.untrainable_reason

    assert reason_for("anna") is None
    stack.control("PUT", f"/v1/opted_out/{subject}").raise_for_status()
    stack.settle()
    assert reason_for("anna") == "opted out"
    assert reason_for("ben") is None
    stack.control("DELETE", f"/v1/opted_out/{subject}").raise_for_status()
    stack.settle()
    assert reason_for("anna") is None


def test_a_subject_is_one_person_whichever_application_they_talk_to(stack: Stack) -> None:
    """Decision 14: an opt-out holds for every key, those made later included; conversations stay apart."""
    subject = keyed_hash(bytes.fromhex(HASH_SECRET), "subject", "dora")
    keys = [stack.key(), stack.key()]
    stack.control("PUT", f"/v1/opted_out/{subject}").raise_for_status()
    keys.append(stack.key())
    turns = [stack.turns(turn_id(ask(stack, key=key, user="dora")))[0] for key in keys]
    assert [turn.untrainable_reason for turn in turns] == ["opted out"] * 3
    assert {turn.subject for turn in turns} == {subject}
    assert len({turn.prefix_hashes[0] for turn in turns}) == 3


def test_a_request_opts_out_however_it_spells_no_and_a_misspelt_wish_is_refused(stack: Stack) -> None:
    for said, status in (("no", 200), ("No", 200), ("false", 400), ("off", 400)):
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {stack.shared_key}", "x-everloop-train": said}
        answer = httpx.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == status, said
        if status == 200:
            assert stack.turns(turn_id(answer))[0].untrainable_reason == "opted out"


def test_who_opts_out_in_mid_answer_is_not_learned_from_either(stack: Stack) -> None:
    subject = keyed_hash(bytes.fromhex(HASH_SECRET), "subject", "carol")
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    httpx.post(f"{engine}/stand-in", json={"delay": 0.2}).raise_for_status()
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "user": "carol", "stream": True}
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    url = f"{stack.gateway_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        chunks = answer.iter_raw()
        next(chunks)
        httpx.post(f"{engine}/stand-in", json={"delay": 1.0}).raise_for_status()
        stack.control("PUT", f"/v1/opted_out/{subject}").raise_for_status()
        stack.settle()
        httpx.post(f"{engine}/stand-in", json={"delay": 0.0}).raise_for_status()
        for _ in chunks:
            pass
        (turn,) = stack.turns(answer.headers["x-everloop-turn-id"])
    assert turn.untrainable_reason == "opted out"


def test_nothing_of_administration_is_on_the_public_port(stack: Stack) -> None:
    admin = stack.key("inference", "feedback", "admin")
    for path in ("/metrics", "/v1/keys", "/v1/snapshot", "/v1/fleet", "/v1/opted_out", "/everloop/state"):
        answer = httpx.get(stack.gateway_url + path, headers={"authorization": f"Bearer {admin}"})
        assert answer.status_code == 404, path


def refused_for_its_key(stack: Stack, key: str, *ports: int) -> Callable[[], bool]:
    """Whether every gateway, on fresh connections that any of its workers may take, refuses the key."""
    return lambda: all(ask(stack, key=key, port=port).status_code == 401 for port in ports for _ in range(8))


def test_over_two_gateways_limits_are_shared_and_a_revoked_key_is_refused_by_all(tmp_path) -> None:
    with running(tmp_path) as stack:
        second = Stack(tmp_path / "second", control_port=stack.control_port)
        second.home.mkdir()
        try:
            second.start_gateway("--workers", "2")
            for gateway in (stack, second):
                wait_until(lambda g=gateway: everyone_knows(g, 3), "the count of workers")
            made = stack.control("POST", "/v1/keys", {"name": "k", "roles": ["inference"], "requests_per_minute": 3})
            key, key_id = made.json()["key"], made.json()["key_id"]
            stack.settle()
            second.settle()
            ports = (stack.gateway_port, second.gateway_port)
            statuses = [ask(stack, key=key, port=port).status_code for port in ports for _ in range(8)]
            assert statuses.count(200) in (2, 3)  # whether both workers of the second gateway met a connection
            assert set(statuses) == {200, 429}
            assert statuses[:2] == [200, 429]
            free = stack.key("inference")
            second.settle()
            assert ask(stack, key=free, port=second.gateway_port).status_code == 200
            assert stack.control("DELETE", f"/v1/keys/{key_id}").status_code == 200
            wait_until(refused_for_its_key(stack, key, *ports), "the refusal")
            second.stop("gateway")
            wait_until(lambda: everyone_knows(stack, 1), "the count of workers")
            three = stack.key("inference", requests_per_minute=3)
            assert [ask(stack, key=three).status_code for _ in range(4)] == [200, 200, 200, 429]
        finally:
            second.stop_all()


def everyone_knows(stack: Stack, workers: int) -> bool:
    told = [value for name, value in stack.samples() if re.match(r"everloop_workers\b", name)]
    return told == [workers] * stack.workers


def test_turns_are_what_events_say(stack: Stack) -> None:
    """Every turn that these tests left on the log keeps its contract."""
    for event in stack.events():
        if isinstance(event, Turn):
            event.check()
