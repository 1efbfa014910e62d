"""Simulated users against a small stand-in for the gateway: what they send, and an honest tally."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from pipelines.demo.errors import DemoFailed
from pipelines.demo.measure import measure
from pipelines.simulate.traffic import Crowd
from pipelines.simulate.users import everyday_users

QUESTIONS = [
    {
        "id": f"facts-{i}",
        "system": "Be brief.",
        "question": f"What is the tallest animal in country {i}?",
        "meta": {"kind": "facts", "topic": "giraffe"},
    }
    for i in range(6)
]


class Gateway:
    """Answers, fails as told, and remembers what it got."""

    def __init__(self) -> None:
        self.chats: list[dict] = []
        self.headers: list[dict] = []
        self.feedback: list[dict] = []
        self.fail_chats = 0
        self.fail_feedback = 0
        self.status = 500
        self.versions = ["v1"]

    async def chat(self, request: web.Request) -> web.Response:
        if self.fail_chats:
            self.fail_chats -= 1
            return web.json_response({"error": {"message": "no"}}, status=self.status, headers={"retry-after-ms": "1"})
        self.chats.append(await request.json())
        self.headers.append(dict(request.headers))
        turn_id = f"chatcmpl-{len(self.chats)}"
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "It is the giraffe with its neck."},
            "finish_reason": "stop",
        }
        body = {"id": turn_id, "object": "chat.completion", "created": 1, "model": "demo", "choices": [choice]}
        version = self.versions[len(self.chats) % len(self.versions)]
        return web.json_response(body, headers={"x-everloop-turn-id": turn_id, "x-everloop-version": version})

    async def take(self, request: web.Request) -> web.Response:
        if self.fail_feedback:
            self.fail_feedback -= 1
            return web.json_response({"error": {"message": "no"}}, status=400)
        self.feedback.append(await request.json())
        return web.json_response({"feedback_id": "fb-1"}, status=202)


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, AsyncOpenAI]]:
    stub, app = Gateway(), web.Application()
    app.router.add_post("/v1/chat/completions", stub.chat)
    app.router.add_post("/v1/feedback", stub.take)
    async with TestServer(app) as server, AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="k") as client:
        yield stub, client


def crowd(client: AsyncOpenAI, folder: Path, silent: float = 0.25) -> Crowd:
    users = everyday_users(QUESTIONS, people=3, seed=0, silent=silent)
    return Crowd(client, "demo", users, folder / "simulate" / "journal.jsonl", concurrency=8)


async def test_a_wave_asks_judges_and_writes_its_journal(gateway: tuple[Gateway, AsyncOpenAI], tmp_path: Path) -> None:
    stub, client = gateway
    with crowd(client, tmp_path) as people:
        await people.wave(40)
    assert (people.tally.turns, people.tally.failed_requests, people.tally.retries) == (40, 0, 0)
    assert len(stub.feedback) == people.tally.feedback_sent
    assert 0 < len(stub.feedback) < 40
    sent = stub.chats[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("demo", 1, 32)
    assert sent["metadata"] == {"kind": "facts"}
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {chat["user"] for chat in stub.chats} == {"person-00", "person-01", "person-02"}
    assert {(item["target"], item["source"]) for item in stub.feedback} == {("turn", "simulator")}
    assert {item["kind"] for item in stub.feedback} <= {"accept", "reject"}
    assert len({item["idempotency_key"] for item in stub.feedback}) == len(stub.feedback)
    journal = [json.loads(line) for line in (tmp_path / "simulate" / "journal.jsonl").read_text().splitlines()]
    assert len(journal) == 40
    assert {line["version"] for line in journal} == {"v1"}
    told = {line["turn_id"]: line["said"] for line in journal if line["said"]}
    assert told == {item["id"]: item["kind"] for item in stub.feedback}


async def test_retries_of_the_client_are_counted(gateway: tuple[Gateway, AsyncOpenAI], tmp_path: Path) -> None:
    stub, client = gateway
    stub.fail_chats = 2
    with crowd(client, tmp_path) as people:
        await people.exchange()
    assert (people.tally.turns, people.tally.retries, people.tally.failed_requests) == (1, 2, 0)


async def test_failed_requests_and_feedback_are_counted_by_kind(
    gateway: tuple[Gateway, AsyncOpenAI], tmp_path: Path
) -> None:
    stub, client = gateway
    stub.fail_chats, stub.status, stub.fail_feedback = 2, 401, 1
    with crowd(client, tmp_path, silent=0.0) as people:
        await people.wave(5)
    assert (people.tally.turns, people.tally.failed_requests, people.tally.failed_feedback) == (3, 2, 1)
    assert people.tally.failures == {"AuthenticationError 401": 2, "BadRequestError 400": 1}


async def test_a_trickle_ends_with_its_event(gateway: tuple[Gateway, AsyncOpenAI], tmp_path: Path) -> None:
    _, client = gateway
    over = asyncio.Event()
    with crowd(client, tmp_path) as people:
        trickle = asyncio.create_task(people.steadily(200.0, until=over))
        await people.steadily(100.0, turns=5)
        over.set()
        await trickle
        turns = people.tally.turns
        assert turns > 5
        await people.steadily(500.0, turns=3)
    assert people.tally.turns == turns + 3


async def test_the_final_set_is_kept_out_of_training(gateway: tuple[Gateway, AsyncOpenAI]) -> None:
    stub, client = gateway
    found = await measure(client, "demo", QUESTIONS, answers=2)
    assert found.version == "v1"
    assert [len(row) for row in found.truths] == [2] * 6
    assert {headers["x-everloop-train"] for headers in stub.headers} == {"no"}
    assert found.acceptance == pytest.approx(found.truths[0][0])


async def test_a_final_set_answered_by_two_versions_is_an_error(gateway: tuple[Gateway, AsyncOpenAI]) -> None:
    stub, client = gateway
    stub.versions = ["v1", "v2"]
    with pytest.raises(DemoFailed, match="answered by v1 and v2"):
        await measure(client, "demo", QUESTIONS, answers=2)
