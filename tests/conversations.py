"""Conversations for tests: messages as chat has them, in which a tool tells the weather, and their turns."""

import json
from typing import Any

from serving.gateway.sessions import Conversation
from tests.lakes import turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def user(text: str) -> dict:
    """What the user says."""
    return {"role": "user", "content": text}


def says(text: str) -> dict:
    """An answer in words."""
    return {"role": "assistant", "content": text}


def calls(arguments: str = '{"city":"Rome"}', name: str = "weather") -> dict:
    """An answer that calls a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(text: str) -> dict:
    """What the tool gave back."""
    return {"role": "tool", "tool_call_id": "c1", "content": text}


def talk(turn_id: str, messages: list[dict], answer: dict | None, at: float, **changes: Any) -> dict:
    """A turn as the gateway records it, from `at` for 1 s."""
    owner = changes.get("key_id", "k") + changes.setdefault("subject", "anna")
    session, hashes = Conversation(b"secret", owner, messages).close(answer)
    row = turn(
        turn_id,
        session_id=session,
        prefix_hashes=hashes,
        prompt=list(json.dumps(messages).encode()),
        request=json.dumps({"messages": messages, "tools": TOOLS}),
        answer="" if answer is None else json.dumps(answer),
        started_at=at,
        finished_at=at + 1,
    )
    return row | changes


OPENING = [user("Rome?")]
"""What most of them begin with."""
