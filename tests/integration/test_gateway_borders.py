"""Keys, limits, arms and versions: what the gateway refuses, and in which shape."""

import json
import signal
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from ingest.contracts.fleet import EngineState
from tests.integration.serving_stack import Stack, running, wait_until

pytestmark = pytest.mark.integration
BODY = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
SETTINGS = {"engine_wait_seconds": 0.5, "default_policy": None, "max_in_flight_bytes": 1 << 20}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("borders"), settings=SETTINGS) as stack:
        stack.shared_key = stack.key()
        yield stack


def post(stack: Stack, body: object = BODY, path: str = "/v1/chat/completions", key: str | None = None, **headers: str):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    authorization = {"authorization": f"Bearer {key or stack.shared_key}"}
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(stack.gateway_url + path, content=content, headers={**authorization, **headers}, timeout=60)


def refused(answer: httpx.Response, status: int, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    assert code in (None, error["code"])
    assert (status in (429, 502, 503)) == ("retry-after" in answer.headers)


def test_keys_and_roles(stack: Stack) -> None:
    refused(post(stack, key="el-unknown"), 401, "invalid_api_key")
    refused(httpx.post(f"{stack.gateway_url}/v1/chat/completions", json=BODY), 401)
    only_feedback = stack.key("feedback")
    refused(post(stack, key=only_feedback), 403, "insufficient_role")
    only_inference = stack.key("inference")
    feedback = {"target": "turn", "id": "x", "kind": "accept"}
    refused(post(stack, feedback, "/v1/feedback", only_inference), 403)
    assert post(stack, feedback, "/v1/feedback", only_feedback).status_code == 202


def test_a_revoked_key_is_refused_as_soon_as_the_snapshot_is_in(stack: Stack) -> None:
    made = stack.control("POST", "/v1/keys", {"name": "short", "roles": ["inference"]}).json()
    stack.settle()
    assert post(stack, key=made["key"]).status_code == 200
    assert stack.control("DELETE", f"/v1/keys/{made['key_id']}").status_code == 200
    stack.settle()
    refused(post(stack, key=made["key"]), 401)


def test_limits_of_a_key(stack: Stack) -> None:
    twice = stack.key("inference", requests_per_minute=2)
    assert [post(stack, key=twice).status_code for _ in range(3)] == [200, 200, 429]
    refused(post(stack, key=twice), 429, "rate_limit_exceeded")
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    one = stack.key("inference", concurrency=1)
    httpx.post(f"{engine}/stand-in", json={"delay": 0.3}).raise_for_status()
    slow = threading.Thread(target=post, args=(stack,), kwargs={"key": one})
    slow.start()
    wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 1, "the slow turn")
    refused(post(stack, key=one), 429)
    httpx.post(f"{engine}/stand-in", json={"delay": 0.0}).raise_for_status()
    slow.join()
    assert post(stack, key=one).status_code == 200


def test_bodies_in_progress_are_bounded_together_and_small_ones_pass(stack: Stack) -> None:
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    httpx.post(f"{engine}/stand-in", json={"faults": ["hold"]}).raise_for_status()
    before = asked_of(engine)
    large = {**BODY, "messages": [{"role": "user", "content": "x" * 600_000}], "max_tokens": 8}
    signal = {"target": "turn", "id": "x", "kind": "edit", "text": "x" * 600_000}
    body = json.dumps(large).encode()
    with socket.create_connection(("127.0.0.1", stack.gateway_port)) as holding:
        first = "POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {stack.shared_key}"
        holding.sendall("\r\n".join([*first, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        wait_until(lambda: asked_of(engine) > before, "the large turn")
        refused(post(stack, large), 503, "unavailable")
        refused(post(stack, signal, "/v1/feedback"), 503, "unavailable")
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = post(stack, large, path)
            assert (answer.status_code, answer.json()["type"]) == (503, "error")
            assert answer.headers["retry-after"]
        chunked = httpx.post(
            f"{stack.gateway_url}/v1/chat/completions",
            content=(b" " * 60_000 for _ in range(10)),
            headers={"authorization": f"Bearer {stack.shared_key}"},
        )
        refused(chunked, 503, "unavailable")
        assert held(stack) == len(body)
        assert post(stack).status_code == 200
    wait_until(lambda: not held(stack), "the end of the large turn")
    assert post(stack, large).status_code == 200
    refused(post(stack, b" " * (1 << 20) + body), 413, "request_too_large")


def asked_of(engine: str) -> int:
    return len(httpx.get(f"{engine}/stand-in").json()["requests"])


def held(stack: Stack) -> float:
    return stack.metrics()["everloop_body_bytes"]


def test_arms_and_versions(stack: Stack) -> None:
    refused(post(stack, x_everloop_arm="evaluation"), 403)
    refused(post(stack, x_everloop_arm="surprise"), 400)
    evaluator = stack.key("inference", "evaluation")
    refused(post(stack, key=evaluator, x_everloop_arm="evaluation"), 503, "unavailable")
    stack.control("PUT", "/v1/policies/policy/under_evaluation", {"version": "v9", "path": "/v9"})
    stack.start_engine(
        "evaluation", "--control", stack.control_url, "--engine-id", "ev", "--role", "evaluation", "--version", "v9"
    )

    def versions() -> list[str]:
        return [engine["version"] for engine in stack.control("GET", "/v1/fleet").json()["engines"]]

    wait_until(lambda: "v9" in versions(), "the evaluation engine")
    stack.settle()
    answer = post(stack, key=evaluator, x_everloop_arm="evaluation", x_everloop_version="v9")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-everloop-version"] == "v9"
    (turn,) = stack.turns(answer.json()["id"])
    assert (turn.arm, turn.trainable, turn.untrainable_reason) == ("evaluation", False, "evaluation")
    assert post(stack, key=evaluator).headers["x-everloop-version"] == "base"
    assert post(stack, x_everloop_version="base").status_code == 200
    refused(post(stack, x_everloop_version="v9"), 409, "version_unavailable")


def test_models_paths_and_methods(stack: Stack) -> None:
    refused(post(stack, {**BODY, "model": "gpt-9"}), 404)
    refused(post(stack, path="/v1/embeddings"), 404)
    refused(httpx.get(f"{stack.gateway_url}/v1/chat/completions"), 405)
    assert httpx.get(f"{stack.gateway_url}/health").json() == {"status": "ok"}


def test_no_ready_engine_is_a_503_after_a_bounded_wait(stack: Stack) -> None:
    stack.control("PUT", "/v1/policies/empty", {"name": "empty", "desired": {"version": "b", "path": "/b"}})
    stack.settle()
    refused(post(stack, {**BODY, "model": "empty"}), 503, "unavailable")


def test_a_request_waits_for_an_engine_that_swaps(tmp_path) -> None:
    with running(tmp_path, engine=False) as stack:
        key = stack.key()
        url = stack.start_engine()
        stack.beat("e", url)
        stack.beat("e", url, state=EngineState.SWAPPING)
        stack.settle()
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(post(stack, key=key)))
        asking.start()
        wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 1, "the waiting turn")
        stack.beat("e", url)
        asking.join()
        assert answers[0].status_code == 200


def test_a_key_that_is_revoked_while_its_requests_wait_is_refused(tmp_path) -> None:
    asked = {"/v1/chat/completions": BODY, "/v1/messages/count_tokens": BODY}
    with running(tmp_path, engine=False) as stack:
        made = stack.control("POST", "/v1/keys", {"name": "short", "roles": ["inference"]}).json()
        url = stack.start_engine()
        stack.beat("e", url, state=EngineState.SWAPPING)
        stack.settle()
        answers: list[httpx.Response] = []
        waiting = [
            threading.Thread(target=lambda p=p: answers.append(post(stack, asked[p], p, made["key"]))) for p in asked
        ]
        for thread in waiting:
            thread.start()
        wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 2, "the waiting requests")
        stack.control("DELETE", f"/v1/keys/{made['key_id']}").raise_for_status()
        stack.settle()
        stack.beat("e", url)
        for thread in waiting:
            thread.join()
        assert [answer.status_code for answer in answers] == [401, 401]
        assert httpx.get(f"{url}/stand-in").json()["requests"] == []


def test_a_second_engine_is_not_asked_for_a_key_that_was_revoked_meanwhile(tmp_path) -> None:
    with running(tmp_path, engine=False) as stack:
        made = stack.control("POST", "/v1/keys", {"name": "short", "roles": ["inference"]}).json()
        beating = ("--control", stack.control_url, "--engine-id")
        urls = {name: stack.start_engine(name, *beating, name) for name in ("one", "two")}
        wait_until(lambda: len(stack.control("GET", "/v1/fleet").json()["engines"]) == 2, "both engines")
        for url in urls.values():
            httpx.post(f"{url}/stand-in", json={"faults": ["hold"]}).raise_for_status()
        stack.settle()
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(post(stack, key=made["key"])))
        asking.start()

        def asked() -> list[str]:
            return [name for name, url in urls.items() if httpx.get(f"{url}/stand-in").json()["requests"]]

        wait_until(asked, "the engine")
        (first,) = asked()
        stack.control("DELETE", f"/v1/keys/{made['key_id']}").raise_for_status()
        stack.settle()
        stack.stop(first, signal.SIGKILL)
        asking.join()
        refused(answers[0], 502, "engine_failed")
        del urls[first]
        assert asked() == []


def test_logs_hold_no_content_no_key_and_no_user(stack: Stack) -> None:
    secret = {"model": "policy", "messages": [{"role": "user", "content": "pelican-7"}], "user": "anna-7"}
    assert post(stack, secret).status_code == 200
    refused(post(stack, {**secret, "model": "pelican-7"}), 404)
    log = (stack.home / "gateway.log").read_text() + (stack.home / "control.log").read_text()
    assert "pelican-7" not in log
    assert "anna-7" not in log
    assert "el-" not in log
