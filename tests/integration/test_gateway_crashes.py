"""Processes that die, control that is away, a spool without room, and what keeps a gateway from starting."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import openai
import pytest

from ingest.contracts.turn import Finish, Turn
from pipelines.stack.addresses import free_port
from tests.integration.serving_stack import environment, running, wait_until

pytestmark = pytest.mark.integration
HI = [{"role": "user", "content": "hi"}]


def test_every_acknowledged_turn_is_on_the_log_once_after_kill_9(tmp_path: Path) -> None:
    """Load on two workers; the gateway is killed in the middle; what was acknowledged is on the log, once."""
    with running(tmp_path) as stack:
        stack.stop("gateway")
        stack.start_gateway("--workers", "2")
        key = stack.key()
        acknowledged: list[str] = []
        stop = threading.Event()

        def load(stream: bool) -> None:
            client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=key, max_retries=0, timeout=30)
            while not stop.is_set():
                try:
                    answer = client.chat.completions.create(model="policy", messages=HI, stream=stream)
                    acknowledged.append({chunk.id for chunk in answer}.pop() if stream else answer.id)
                except (openai.APIError, httpx.HTTPError):
                    return

        threads = [threading.Thread(target=load, args=(i % 2 == 0,)) for i in range(6)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(acknowledged) > 60, "some turns")
        stack.stop("gateway", signal.SIGKILL)
        stop.set()
        for thread in threads:
            thread.join()
        on_log: list[str] = []

        def adopted() -> bool:
            on_log[:] = [event.turn_id for event in stack.events() if isinstance(event, Turn)]
            return set(acknowledged) <= set(on_log)

        wait_until(adopted, "every acknowledged turn", 30)
        assert len(on_log) == len(set(on_log))


def test_engines_killed_before_and_after_their_first_byte(tmp_path: Path) -> None:
    with running(tmp_path, engine=False) as stack:
        key = stack.key()
        first = stack.start_engine("first")
        stack.beat("first", first)
        stack.settle()
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=key, max_retries=0, timeout=60)
        httpx.post(f"{first}/stand-in", json={"faults": ["die_mid"]}).raise_for_status()
        stream = client.chat.completions.create(model="policy", messages=HI, stream=True)
        turn_id = next(stream).id
        with pytest.raises(openai.APIError, match="went away"):
            list(stream)
        assert stack.turns(turn_id)[0].finish is Finish.ENGINE_LOST
        second = stack.start_engine("second")
        third = stack.start_engine("third")
        stack.beat("second", second)
        stack.beat("third", third)
        stack.settle()
        for url in (second, third):
            httpx.post(f"{url}/stand-in", json={"faults": ["die_before"]}).raise_for_status()
        stack.processes.pop("first").wait(30)
        stack.control("DELETE", "/v1/engines/first").raise_for_status()
        stack.settle()
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="policy", messages=HI)
        for name in ("second", "third"):
            stack.processes.pop(name).wait(30)
            stack.control("DELETE", f"/v1/engines/{name}").raise_for_status()
        fourth = stack.start_engine("fourth")
        stack.beat("fourth", fourth)
        stack.settle()
        answer = client.chat.completions.create(model="policy", messages=HI)
        assert stack.turns(answer.id)[0].engine_id == "fourth"


def test_a_plain_answer_may_take_the_whole_turn_and_no_longer(tmp_path: Path) -> None:
    with running(tmp_path, settings={"engine_silence_seconds": 0.2, "turn_seconds": 10}) as stack:
        engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.key(), max_retries=0, timeout=60)
        httpx.post(f"{engine}/stand-in", json={"delay": 0.1}).raise_for_status()
        answer = client.chat.completions.create(model="policy", messages=HI)
        assert stack.turns(answer.id)[0].finish is Finish.STOP
        httpx.post(f"{engine}/stand-in", json={"faults": ["hold"]}).raise_for_status()
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="policy", messages=HI)
        assert failed.value.status_code == 502
        assert stack.turns(failed.value.response.headers["x-request-id"])[0].finish is Finish.ENGINE_LOST
        assert len(httpx.get(f"{engine}/stand-in").json()["requests"]) == 2


def test_turns_that_outlast_the_drain_are_recorded_and_their_callers_told(tmp_path: Path) -> None:
    with running(tmp_path, settings={"drain_seconds": 0.5}) as stack:
        engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
        httpx.post(f"{engine}/stand-in", json={"delay": 0.5, "tokens": 200}).raise_for_status()
        asked = {"model": "policy", "messages": HI, "max_tokens": 200}
        headers = {"authorization": f"Bearer {stack.key()}"}
        answers: dict[str, httpx.Response] = {}

        def ask(path: str, stream: bool) -> None:
            answers[path] = httpx.post(
                stack.gateway_url + path, json={**asked, "stream": stream}, headers=headers, timeout=60
            )

        asks = (("/v1/chat/completions", False), ("/v1/messages", True))
        threads = [threading.Thread(target=ask, args=args) for args in asks]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(httpx.get(f"{engine}/stand-in").json()["requests"]) == 2, "both to be asked")
        process = stack.processes.pop("gateway")
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(30) == 0
        plain, streamed = (answers[path] for path, _ in asks)
        assert (plain.status_code, plain.json()["error"]["code"]) == (502, "engine_failed")
        assert streamed.text.rstrip().rpartition("event: ")[2].startswith("error\n")
        for answer in (plain, streamed):
            (turn,) = stack.turns(answer.headers["x-everloop-turn-id" if answer is streamed else "x-request-id"])
            assert turn.finish is Finish.ENGINE_LOST
        # Of the other one the connection was closed, which is what ends it in vLLM.
        assert httpx.get(f"{engine}/stand-in").json()["aborted"] == [
            streamed.headers["x-request-id"].removeprefix("msg_")
        ]


def test_who_waits_for_an_engine_or_behind_another_request_when_the_drain_ends_is_told_to_come_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path, engine=False, settings={"drain_seconds": 0.5, "engine_wait_seconds": 60}) as stack:
        key = stack.key()
        body = json.dumps({"model": "policy", "messages": HI, "max_tokens": 9})
        fields = f"host: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        with socket.create_connection(("127.0.0.1", stack.gateway_port)) as line:
            for path in ("/v1/messages", "/v1/chat/completions"):
                line.sendall(f"POST {path} HTTP/1.1\r\n{fields}".encode())
            wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 1, "the turn")
            process = stack.processes.pop("gateway")
            process.send_signal(signal.SIGTERM)
            told = b"".join(iter(lambda: line.recv(65536), b"")).decode()
        assert process.wait(30) == 0
        first, second = told.split("HTTP/1.1 ")[1:]
        assert first.startswith("503 ")
        assert "request-id: msg_" in first
        assert '"type":"overloaded_error"' in first
        assert second.startswith("503 ")
        assert '"The gateway is stopping: try again in a moment."' in second
        assert first.count("retry-after: ") == second.count("retry-after: ") == 1
        assert "Cancel" not in (stack.home / "gateway.log").read_text()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_above_the_bound_ends_recorded_as_failed_and_its_caller_is_told(tmp_path: Path, stream: bool) -> None:
    with running(tmp_path, settings={"max_answer_bytes": 1 << 20}) as stack:
        engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
        headers = {"authorization": f"Bearer {stack.key()}"}
        for path in ("/v1/chat/completions", "/v1/messages"):
            httpx.post(f"{engine}/stand-in", json={"faults": ["flood"], "tokens": 100}).raise_for_status()
            asked = {"model": "policy", "messages": HI, "max_tokens": 100, "stream": stream}
            answer = httpx.post(stack.gateway_url + path, json=asked, headers=headers, timeout=60)
            body = answer.text.rpartition("data: ")[2] if stream else answer.text
            assert answer.status_code == (200 if stream else 413)
            assert "The answer is above 1048576 bytes" in json.loads(body)["error"]["message"]
            (turn,) = stack.turns(answer.headers["x-request-id"])
            assert (turn.finish, turn.trainable) == (Finish.ERROR, False)
            assert turn.answer if stream else turn.output_ids  # as far as it came
            assert len(answer.content) <= 1 << 20


def test_a_client_that_reads_nothing_has_left(tmp_path: Path) -> None:
    with running(tmp_path, settings={"send_seconds": 1}) as stack:
        engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
        httpx.post(f"{engine}/stand-in", json={"faults": ["flood"], "tokens": 500}).raise_for_status()
        body = json.dumps({"model": "policy", "messages": HI, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key()}\r\n"
        with socket.create_connection(("127.0.0.1", stack.gateway_port)) as s:
            s.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            turn_id = s.recv(1024).decode().partition("x-request-id: ")[2].partition("\r\n")[0]
            (turn,) = stack.turns(turn_id)
        assert turn.finish is Finish.ABORT
        assert 0 < len(turn.output_ids) // 4 <= 200  # what the buffers on the way held when it was aborted
        assert httpx.get(f"{engine}/stand-in").json()["aborted"] == [turn_id.removeprefix("chatcmpl-")]
        wait_until(lambda: stack.metrics()["everloop_turns_in_progress"] == 0, "its place to be free")


def test_control_may_be_away_and_a_gateway_restarts_without_it(tmp_path: Path) -> None:
    with running(tmp_path, engine=False) as stack:
        key = stack.key()
        url = stack.start_engine()
        stack.beat("e", url)
        stack.settle()
        stack.stop("control", signal.SIGKILL)
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=key, max_retries=0, timeout=60)
        client.chat.completions.create(model="policy", messages=HI)
        stack.stop("gateway")
        stack.start_gateway()
        client.chat.completions.create(model="policy", messages=HI)
        assert (tmp_path / "gateway-snapshot.json").stat().st_mode & 0o077 == 0
        stack.start_control()
        assert stack.key()


def test_a_full_spool_refuses_before_anything_is_generated(tmp_path: Path) -> None:
    """The bound is on the spools below one root, so a large file in another spool's folder fills it."""
    with running(tmp_path) as stack:
        stack.stop("gateway")
        stack.start_gateway("--max-bytes", str(4 << 20))
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.key(), max_retries=0, timeout=60)
        engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
        client.chat.completions.create(model="policy", messages=HI)
        with pytest.raises(openai.APIStatusError) as never:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * (1 << 20)}], n=3)
        assert (never.value.status_code, never.value.body["code"]) == (413, "request_too_large")
        assert len(httpx.get(f"{engine}/stand-in").json()["requests"]) == 1
        ballast = tmp_path / "spool" / ("f" * 32)
        ballast.mkdir()
        (ballast / "0000000000000001-0000000000000002.db").write_bytes(bytes(5 << 20))

        wait_until(lambda: stack.metrics()["everloop_spool_bytes"] > 5 << 20, "the bound to be noticed", 30)
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="policy", messages=HI)
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"]
        assert failed.value.body["code"] == "capture_failed"
        policy = stack.control("GET", "/v1/fleet").json()["policies"][0]
        stack.control("PUT", "/v1/policies/policy", {**policy, "capture": "best_effort"}).raise_for_status()
        stack.settle()
        assert client.chat.completions.create(model="policy", messages=HI).id
        lost = 'everloop_captures_lost_total{arm="champion",policy="policy",reason="spool_full",version="base"}'
        assert stack.metrics()[lost] == 1


def run_gateway(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "serving.gateway", *arguments],
        env={**environment(), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def one_sentence(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]  # what it logged before
    assert len(lines) == 1
    assert "Traceback" not in result.stderr
    return lines[0]


def test_what_keeps_a_gateway_from_starting_is_one_sentence(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    spool = str(tmp_path / "spool")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "cannot be bound" in one_sentence(
            run_gateway(tmp_path, "--port", port, "--control", nowhere, "--spool", spool)
        )
    arguments = ["--port", str(free_port()), "--control", nowhere, "--spool", spool]
    assert "did not answer" in one_sentence(run_gateway(tmp_path, *arguments))
    assert "EVERLOOP_CONTROL_TOKEN" in one_sentence(run_gateway(tmp_path, *arguments, EVERLOOP_CONTROL_TOKEN=""))
    assert "hexadecimal" in one_sentence(run_gateway(tmp_path, *arguments, EVERLOOP_HASH_SECRET="not hex"))
    (tmp_path / "file").write_text("")
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"revision": 1, "keys": [], "policies": [], "engines": []}))
    arguments = ["--port", str(free_port()), "--control", nowhere, "--spool", str(tmp_path / "file")]
    assert "spool" in one_sentence(run_gateway(tmp_path, *arguments, "--snapshot", str(snapshot)))
    assert "spool" in one_sentence(run_gateway(tmp_path, *arguments, "--workers", "2", "--snapshot", str(snapshot)))


def test_a_worker_that_dies_is_started_again_and_workers_die_with_their_parent(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.stop("gateway")
        stack.start_gateway("--workers", "2")
        parent = stack.processes["gateway"].pid
        wait_until(lambda: len(children(parent)) == 2, "two workers")
        victim = children(parent)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(children(parent)) == 2 and victim not in children(parent), "a new worker")
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.key(), timeout=60)
        assert client.chat.completions.create(model="policy", messages=HI).id
        left = children(parent)
        stack.stop("gateway", signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and alive(pid) for pid in left), "their end")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_gateway_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "pandas", "mlflow", "sqlalchemy", "numpy", "fastapi", "duckdb")
    code = f"import sys, serving.gateway.server; sys.exit(' '.join(m for m in {heavy} if m in sys.modules) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
