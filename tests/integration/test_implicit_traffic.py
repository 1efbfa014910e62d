"""Implicit signals of real traffic: unmodified clients, a real gateway, the spool, the lake, the report."""

import json
import time
from pathlib import Path

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from ingest.attribution import Cut, attributed
from ingest.config import AttributionSettings, LogSettings, RewardSettings
from ingest.land import LandReport, land
from tests.integration.serving_stack import Stack, running, wait_until

pytestmark = pytest.mark.integration
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STEPS = [
    {"tool": "weather", "arguments": {"city": "Rome"}},
    {"text": "The tool failed."},
    {"tool": "whether", "arguments": {"city": "Rome"}},
]
ASKED, COMPLAINT, ERROR = "The forecast, asked for through ", "No, that's wrong.", "Error: no such city"


def chat(stack: Stack, key: str) -> list[str]:
    client = OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=key)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    messages: list = [{"role": "user", "content": ASKED + "chat"}]
    ids = []
    for follow_up in (ERROR, COMPLAINT, None):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=tools)
        ids.append(answer.id)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": follow_up})
        else:
            messages.append({"role": "user", "content": follow_up})
    return ids


def messages(stack: Stack, key: str) -> list[str]:
    client = Anthropic(base_url=stack.gateway_url, api_key=key)
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    said: list = [{"role": "user", "content": ASKED + "messages"}]
    ids = []
    for follow_up in (ERROR, COMPLAINT, None):
        with client.messages.stream(model="policy", max_tokens=100, messages=said, tools=tools) as stream:
            answer = stream.get_final_message()
        ids.append(answer.id)
        said.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
        used = [block.id for block in answer.content if block.type == "tool_use"]
        result = {"type": "tool_result", "content": follow_up, "is_error": True}
        said.append({"role": "user", "content": [{**result, "tool_use_id": used[0]}] if used else follow_up})
    return ids


def responses(stack: Stack, key: str) -> list[str]:
    client = OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=key)
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    items: list = [{"role": "user", "content": ASKED + "responses"}]
    ids = []
    for follow_up in (ERROR, COMPLAINT, None):
        answer = client.responses.create(model="policy", input=items, tools=tools, store=False)
        ids.append(answer.id)
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        called = [item.call_id for item in answer.output if item.type == "function_call"]
        result = {"type": "function_call_output", "output": follow_up}
        items.append({**result, "call_id": called[0]} if called else {"role": "user", "content": follow_up})
    return ids


def test_every_format_tells_what_became_of_its_answers(tmp_path: Path) -> None:
    with running(tmp_path / "stack") as stack:
        (engine,) = json.loads(stack.control("GET", "/v1/fleet").content)["engines"]
        httpx.post(f"{engine['url']}/stand-in", json={"scripts": {"forecast": STEPS}}).raise_for_status()
        key = stack.key()
        asked = {ids[0]: ids for ids in (talk(stack, key) for talk in (chat, messages, responses))}
        said_by = time.time()
        last: list[LandReport] = []

        def landed() -> bool:
            last[:] = [land(log=LogSettings(kind="embedded"), spool=stack.home / "spool", lake=tmp_path / "lake")]
            return last[0].watermark > said_by

        wait_until(landed, "the watermark")
    cut = Cut(time.time(), last[0].watermark)
    with attributed(tmp_path / "lake", "policy", AttributionSettings(), RewardSettings(), cut, ()) as join:
        found = join.execute("SELECT turn_id, kind, status FROM signal").fetchall()
    expected = [
        (turn_id, kind, "worthless")
        for ids in asked.values()
        for turn_id, kind in zip(ids, ("tool_error", "dissatisfied", "invalid_tool_call"), strict=True)
    ]
    assert sorted(found) == sorted(expected)
