"""What a gateway recorded of a harness."""

import json

from ingest.contracts.turn import Turn
from tests.integration.serving_stack import Stack, wait_until

START_SECONDS = 600.0


def until_served(stack: Stack, policy: str) -> None:
    """Returns when an engine of the policy is in service."""
    wait_until(lambda: stack.control("GET", "/v1/fleet").json()["converged"][policy], policy, START_SECONDS)


def turns(stack: Stack) -> list[Turn]:
    """All turns on the log, in the order of asking."""
    return sorted((event for event in stack.events() if isinstance(event, Turn)), key=lambda turn: turn.started_at)


def said(turn: Turn) -> list[str]:
    """The names of the tools that the answer calls, or its text."""
    answer = json.loads(turn.answer)
    parts = answer.get("output") or answer["content"] or answer["tool_calls"]
    parts = [{"text": parts}] if isinstance(parts, str) and parts else parts or answer["tool_calls"]
    return [_said(part) for part in parts]


def _said(part: dict) -> str:
    part = part.get("function") or part
    return part.get("name") or (part.get("text") or part["content"][0]["text"]).strip()
