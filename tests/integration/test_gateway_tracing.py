"""Traces of turns: joined to the engine, made by the gateway, without content; and none where no endpoint is set."""

import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.serving_stack import Stack, running, wait_until
from tests.otlp_collector import Collector, Span, collecting

pytestmark = pytest.mark.integration
CALLERS = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Collector]]:
    with (
        collecting() as collector,
        running(tmp_path_factory.mktemp("traced"), settings={"otlp_endpoint": collector.url}) as stack,
    ):
        stack.shared_key = stack.key()
        yield stack, collector


def ask(stack: Stack, **more: object) -> httpx.Response:
    body = {"model": "policy", "messages": [{"role": "user", "content": "pelican-7"}], "user": "anna-7", **more}
    headers = {"authorization": f"Bearer {stack.shared_key}", "traceparent": CALLERS, "tracestate": "x=y"}
    return httpx.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def told(stack: Stack) -> dict:
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    return httpx.get(f"{engine}/stand-in").json()


def spans(collector: Collector, turn_id: str, count: int) -> dict[str, Span]:
    wait_until(lambda: len(collector.of_turn(turn_id)) >= count, "the spans")
    assert len(collector.of_turn(turn_id)) == count
    return {span.name: span for span in collector.of_turn(turn_id)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_is_one_trace_and_the_engine_is_told_of_it(traced: tuple[Stack, Collector], stream: bool) -> None:
    stack, collector = traced
    answer = ask(stack, stream=stream)
    found = spans(collector, answer.headers["x-everloop-turn-id"], 3)
    turn, engine, commit = found["turn"], found["engine"], found["commit"]
    assert (turn.parent, engine.parent, commit.parent) == ("", turn.id, turn.id)
    assert told(stack)["headers"][-1]["traceparent"].startswith(f"00-{turn.trace}-{engine.id}-")
    assert "tracestate" not in told(stack)["headers"][-1]
    assert turn.trace != "c" * 32
    assert turn.links == ("c" * 32,)
    named = {name.removeprefix("everloop."): value for name, value in turn.attributes.items()}
    assert (named["policy"], named["version"], named["arm"], named["finish"]) == ("policy", "base", "champion", "stop")
    assert (named["gen_ai.usage.output_tokens"], named["http.response.status_code"]) == (8, 200)
    for content in (b"pelican-7", b"anna-7", b"w100"):
        assert all(content not in body for body in collector.raw)


def test_an_engine_that_fails_and_a_refusal_are_seen(traced: tuple[Stack, Collector]) -> None:
    stack, collector = traced
    engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
    httpx.post(f"{engine}/stand-in", json={"faults": ["drop", "drop"]}).raise_for_status()
    assert ask(stack).status_code == 502
    assert ask(stack, n=0).status_code == 400

    def failed(status: int) -> list[Span]:
        return [span for span in collector.spans if span.attributes.get("http.response.status_code") == status]

    wait_until(lambda: failed(502) and failed(400), "the spans")
    assert failed(502)[0].attributes["error.type"] == "engine_failed"
    broken = next(span for span in collector.spans if span.name == "engine" and span.trace == failed(502)[0].trace)
    assert broken.attributes["error.type"] == "EngineBroke"
    lines = [json.loads(line) for line in (stack.home / "gateway.log").read_text().splitlines()]
    assert any(line.get("trace_id") == failed(502)[0].trace for line in lines)


def test_without_an_endpoint_there_is_no_trace_of_it(tmp_path) -> None:
    code = "import sys, serving.gateway.app, serving.gateway.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.split(".")[0] == "opentelemetry"]
    with running(tmp_path) as stack:
        stack.shared_key = stack.key()
        assert ask(stack).status_code == 200
        assert not {"traceparent", "tracestate"} & set(told(stack)["headers"][-1])


def test_a_collector_that_is_away_costs_no_turn(tmp_path) -> None:
    with running(tmp_path, settings={"otlp_endpoint": "http://127.0.0.1:9/v1/traces"}) as stack:
        stack.shared_key = stack.key()
        (turn,) = stack.turns(ask(stack).json()["id"])
        assert turn.trainable
        assert stack.stop("gateway") == 0
