"""The official OpenAI and Anthropic clients, of Python and of Node, unmodified, in each format, plain and streamed."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.integration.serving_stack import Stack, running
from tests.interop import install

pytestmark = pytest.mark.integration
HELLO: list = [{"role": "user", "content": "hello"}]
ASK: dict = {"model": "policy", "max_tokens": 16, "messages": HELLO}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, gateway and a stand-in engine."""
    with running(tmp_path_factory.mktemp("clients")) as stack:
        stack.shared_key = stack.key("inference")
        stack.settle()
        yield stack


def recorded(stack: Stack, found: list[tuple[str, str]]) -> None:
    """Each answer has its turn, with the text that the client got."""
    dialects = [stack.turns(turn_id)[0].dialect for turn_id, _ in found]
    assert dialects == ["chat", "chat", "responses", "responses", "messages", "messages"]
    for turn_id, text in found:
        (turn,) = stack.turns(turn_id)
        turn.check()
        assert text
        assert json.dumps(text) in turn.answer


def test_python(stack: Stack) -> None:
    ours = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.shared_key, max_retries=0)
    theirs = anthropic.Anthropic(base_url=stack.gateway_url, api_key=stack.shared_key, max_retries=0)
    chat = ours.chat.completions.create(**ASK)
    with ours.chat.completions.stream(model="policy", messages=HELLO) as stream:
        streamed = stream.get_final_completion()
    response = ours.responses.create(model="policy", input="hello")
    with ours.responses.stream(model="policy", input="hello") as events:
        streamed_response = events.get_final_response()
    message = theirs.messages.create(**ASK)
    with theirs.messages.stream(**ASK) as messages:
        streamed_message = messages.get_final_message()
    found = [(one.id, one.choices[0].message.content or "") for one in (chat, streamed)]
    found += [(one.id, one.output_text) for one in (response, streamed_response)]
    found += [(one.id, "".join(b.text for b in one.content if b.type == "text")) for one in (message, streamed_message)]
    recorded(stack, found)


def test_python_async(stack: Stack) -> None:
    recorded(stack, asyncio.run(asked(stack)))


async def asked(stack: Stack) -> list[tuple[str, str]]:
    """The same with the clients for asyncio."""
    ours = openai.AsyncOpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.shared_key, max_retries=0)
    theirs = anthropic.AsyncAnthropic(base_url=stack.gateway_url, api_key=stack.shared_key, max_retries=0)
    async with ours, theirs:
        chat = await ours.chat.completions.create(**ASK)
        async with ours.chat.completions.stream(model="policy", messages=HELLO) as stream:
            streamed = await stream.get_final_completion()
        response = await ours.responses.create(model="policy", input="hello")
        async with ours.responses.stream(model="policy", input="hello") as events:
            streamed_response = await events.get_final_response()
        message = await theirs.messages.create(**ASK)
        async with theirs.messages.stream(**ASK) as messages:
            streamed_message = await messages.get_final_message()
    found = [(one.id, one.choices[0].message.content or "") for one in (chat, streamed)]
    found += [(one.id, one.output_text) for one in (response, streamed_response)]
    found += [(one.id, "".join(b.text for b in one.content if b.type == "text")) for one in (message, streamed_message)]
    return found


def test_node(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(install.node_modules())
    program = shutil.copy(Path(__file__).with_name("clients.mjs"), tmp_path)
    command = [install.node() / "bin" / "node", program, stack.gateway_url, stack.shared_key]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    recorded(stack, [(one["id"], one["text"]) for one in told["found"]])
    assert told["refused"] == ["NotFoundError", "NotFoundError", "NotFoundError", "AuthenticationError"]
