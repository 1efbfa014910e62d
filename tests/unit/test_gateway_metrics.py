"""What the admin port shows: the samples of every worker, told apart."""

import socket
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from serving.gateway.admin import Admin, merge, pipe, tell
from serving.gateway.metrics import Metrics
from tests.wires import Connected, exchange


@pytest.fixture
def pipes() -> Iterator[list[socket.socket]]:
    made = [pipe(), pipe()]
    yield made
    for sock in made:
        sock.close()


async def asked(pipes: list[socket.socket], path: str = "/metrics") -> list[str]:
    line = Connected()
    await Admin(pipes)(exchange(line=line, method="GET", path=path))
    head, _, body = line.transport.written.decode().partition("\r\n\r\n")
    return [head.split()[1], *body.splitlines()]


def worker(answers: int) -> Metrics:
    metrics = Metrics()
    for _ in range(answers):
        metrics.answered("/health", 200)
    metrics.in_flight.set(answers)
    return metrics


async def test_every_workers_samples_are_shown_and_told_apart(pipes: list[socket.socket]) -> None:
    servers = [await tell(worker(n).registry, sock) for n, sock in zip((1, 2), pipes, strict=True)]
    status, *lines = await asked(pipes)
    assert status == "200"
    for index, n in enumerate((1.0, 2.0)):
        assert f'everloop_requests_total{{path="/health",status="200",worker="{index}"}} {n}' in lines
        assert f'everloop_turns_in_progress{{worker="{index}"}} {n}' in lines
    assert len([line for line in lines if line.startswith("# TYPE everloop_requests_total ")]) == 1
    assert await asked(pipes, "/other") == ["404"]
    for server in servers:
        server.close()


async def test_a_worker_that_is_not_there_is_left_out(
    pipes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.gateway.admin._ANSWER_SECONDS", 0.1)
    server = await tell(worker(1).registry, pipes[1])
    _, *lines = await asked(pipes)
    assert 'everloop_turns_in_progress{worker="1"} 1.0' in lines
    assert not any('worker="0"' in line for line in lines)
    server.close()


def test_a_text_keeps_its_samples_kinds_and_words() -> None:
    metrics = worker(3)
    metrics._lost.labels('a "policy"\\', "v", "champion", "spool_full").inc()
    metrics._first.labels("p", "v", "champion").observe(0.3)
    text = generate_latest(metrics.registry).decode()
    merged = merge([text]).decode()
    unlabelled = merged.replace(',worker="0"', "").replace('{worker="0"}', "")
    assert sorted(unlabelled.splitlines()) == sorted(text.splitlines())
