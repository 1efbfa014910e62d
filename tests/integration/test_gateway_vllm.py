"""Gateway, control, agent and a real vLLM with a tiny random model: answers, hang-ups, and a swap in mid-answer."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.turn import Finish, Turn
from pipelines.stack.addresses import free_port
from tests.checkpoint_folders import complete
from tests.integration.serving_stack import Stack, running, wait_until
from tests.otlp_collector import Span, collecting
from tests.tiny_models import make_model

pytestmark = [pytest.mark.integration, pytest.mark.engine]
HI = [{"role": "user", "content": "Tell me a story."}]
START_SECONDS = 600.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("vllm")
    models = {version: home / "checkpoints" / "policy" / version / EXPORT for version in ("v1", "v2")}
    for seed, model in enumerate(models.values()):
        complete(make_model(model, seed).parent)
    with (
        collecting() as collector,
        running(home / "stack", engine=False, settings={"otlp_endpoint": collector.url}) as stack,
    ):
        desired = {"version": "v1", "path": str(models["v1"])}
        stack.control("PUT", "/v1/policies/policy/desired", desired).raise_for_status()
        arguments = ["--control", stack.control_url, "--policy", "policy", "--port", str(free_port())]
        arguments += ["--otlp-endpoint", collector.url]
        arguments += ["--model", str(models["v1"]), "--version", "v1", "--weights-root", str(home / "checkpoints")]
        stack.start("agent", "serving.engines.vllm", *arguments, "--max-model-len", "1024", "--max-num-seqs", "16")
        wait_until(lambda: converged(stack), "vLLM", START_SECONDS)
        stack.shared_key, stack.collector = stack.key(), collector
        stack.settle()
        yield stack
        stack.stop("agent")


def converged(stack: Stack) -> bool:
    return stack.control("GET", "/v1/fleet").json()["converged"]["policy"]


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.shared_key, max_retries=0, timeout=120)


def test_plain_answers_of_both_formats(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="policy", messages=HI, max_completion_tokens=12, temperature=1, logprobs=True
    )
    (turn,) = stack.turns(answer.id)
    asked = [entry.logprob for entry in answer.choices[0].logprobs.content]
    assert len(unpack_ids(turn.output_ids)) == len(asked) == answer.usage.completion_tokens
    assert list(unpack_logprobs(turn.logprobs)) == pytest.approx(asked, abs=1e-5)
    assert len(unpack_ids(turn.prompt_ids)) == answer.usage.prompt_tokens
    assert [span.version for span in turn.weight_versions] == ["v1"]
    assert turn.trainable, turn.untrainable_reason
    texts = client.completions.create(model="policy", prompt=["a", "b"], n=2, max_tokens=4)
    turns = stack.turns(texts.id, 4)
    assert all(turn.finish in (Finish.LENGTH, Finish.STOP) for turn in turns)
    assert turns[0].prompt_ids == turns[1].prompt_ids != turns[2].prompt_ids == turns[3].prompt_ids


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_own_span_is_part_of_the_turns_trace(stack: Stack, stream: bool) -> None:
    body = {"model": "policy", "messages": HI, "max_tokens": 6, "ignore_eos": True, "stream": stream}
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    answer = httpx.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    turn_id = answer.headers["x-everloop-turn-id"]

    def named() -> dict[str, Span]:
        return {span.name: span for span in stack.collector.of_turn(turn_id)}

    wait_until(lambda: {"turn", "engine", "commit", "llm_request"} <= named().keys(), "the spans of both processes")
    spans = named()
    assert (spans["turn"].service, spans["llm_request"].service) == ("everloop-gateway", "everloop-engine")
    assert spans["llm_request"].parent == spans["engine"].id
    assert spans["llm_request"].attributes["gen_ai.usage.completion_tokens"] == 6
    assert spans["turn"].attributes["gen_ai.usage.output_tokens"] == 6
    assert all(b"Tell me a story" not in body for body in stack.collector.raw)


def test_streams_clamps_and_refusals(stack: Stack, client: openai.OpenAI) -> None:
    ask = {"model": "policy", "messages": HI, "stream": True, "n": 2}
    chunks = list(client.chat.completions.create(**ask, max_tokens=10, stream_options={"include_usage": True}))
    turns = stack.turns(chunks[0].id, 2)
    assert sum(len(unpack_ids(turn.output_ids)) for turn in turns) == chunks[-1].usage.completion_tokens
    clamped = client.chat.completions.create(model="policy", messages=HI, max_tokens=64_000, stop=["e"])
    assert stack.turns(clamped.id)[0].finish in (Finish.STOP, Finish.LENGTH)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="policy", messages=HI, temperature=-3)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "long " * 4000}])
    greedy = client.chat.completions.create(model="policy", messages=HI, max_tokens=3, temperature=0)
    assert stack.turns(greedy.id)[0].untrainable_reason == "greedy"


def checked(stack: Stack, turn_id: str, dialect: str) -> Turn:
    """The turn, complete: a logprob for each id, spans that tile the output."""
    (turn,) = stack.turns(turn_id)
    turn.check()
    ids = unpack_ids(turn.output_ids)
    assert len(ids) == len(unpack_logprobs(turn.logprobs)) == turn.weight_versions[-1].end > 0
    assert (turn.dialect, turn.trainable, turn.untrainable_reason) == (dialect, True, None)
    return turn


def test_messages_of_the_anthropic_client(stack: Stack) -> None:
    client = anthropic.Anthropic(base_url=stack.gateway_url, api_key=stack.shared_key, max_retries=0, timeout=120)
    ask: dict = {"model": "policy", "system": "be brief", "messages": HI}
    answer = client.messages.create(**ask, max_tokens=12)
    turn = checked(stack, answer.id, "messages")
    assert answer.id.startswith("msg_")
    assert answer.model == "policy"
    assert len(unpack_ids(turn.output_ids)) == answer.usage.output_tokens
    counted = client.messages.count_tokens(**{k: ask[k] for k in ("model", "system", "messages")})
    assert counted.input_tokens == answer.usage.input_tokens == len(unpack_ids(turn.prompt_ids))
    with client.messages.stream(**ask, max_tokens=64_000, stop_sequences=["e"]) as stream:
        streamed = stream.get_final_message()
    assert json.loads(checked(stack, streamed.id, "messages").answer)["content"][0]["text"] == streamed.content[0].text
    history = [*HI, {"role": "assistant", "content": [{"type": "text", "text": answer.content[0].text}]}, *HI]
    second = checked(stack, client.messages.create(**{**ask, "messages": history}, max_tokens=4).id, "messages")
    assert turn.prefix_hashes[-1] in second.prefix_hashes[:-2]
    assert turn.session_id == second.session_id
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    seen = client.messages.with_raw_response.create(
        **{**ask, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]}]},
        max_tokens=4,
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
    )
    assert seen.headers["x-everloop-dropped"] == "tools[0], messages[0].content[0]"
    assert seen.headers["request-id"] == seen.parse().id
    assert client.models.list().data[0].id == "policy"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**{**ask, "messages": [{"role": "user", "content": "long " * 4000}]}, max_tokens=4)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**ask, max_tokens=4, extra_body={"temperature": "hot"})
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="el-wrong").messages.create(**ask, max_tokens=4)


def test_responses_of_the_openai_client(stack: Stack, client: openai.OpenAI) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ask: dict = {"model": "policy", "instructions": "be brief", "temperature": 1.0, "max_output_tokens": 12}
    answer = client.responses.create(**ask, input="Tell me a story.", tools=[tool, {"type": "web_search"}])
    turn = checked(stack, answer.id, "responses")
    assert answer.id.startswith("resp_")
    assert len(unpack_ids(turn.output_ids)) == answer.usage.output_tokens
    streamed = list(client.responses.create(**ask, input=[*HI, *answer.output, *HI], stream=True))
    second = checked(stack, streamed[0].response.id, "responses")
    assert streamed[-1].type == "response.completed"
    assert json.loads(second.answer)["output"][0]["content"][0]["text"] == streamed[-1].response.output_text
    again = client.responses.create(**ask, input=HI)
    third = client.responses.create(**ask, input=[*HI, *again.output, *HI])
    first, then = (checked(stack, one.id, "responses") for one in (again, third))
    assert first.prefix_hashes[-1] in then.prefix_hashes[:-2]
    with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
        client.responses.create(**ask, input="and then?", previous_response_id=answer.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ask, input="long " * 4000)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_hangs_up(stack: Stack, client: openai.OpenAI, stream: bool) -> None:
    ask = {"model": "policy", "messages": HI, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    before = {getattr(event, "turn_id", "") for event in stack.events()}
    if stream:
        answer = client.chat.completions.create(**ask, stream=True)
        next(answer)
        answer.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=httpx.Timeout(60, read=1.0)).chat.completions.create(**ask)

    def recorded() -> list:
        return [event for event in stack.events() if event.turn_id not in before]

    wait_until(lambda: len(recorded()) == 1, "the aborted turn")
    (turn,) = recorded()
    assert turn.finish is Finish.ABORT
    assert 0 < len(unpack_ids(turn.output_ids)) < 900


def test_versions_change_cold_and_then_hot_in_mid_answer(stack: Stack, client: openai.OpenAI) -> None:
    """v2 has no reference, so it is loaded cold, which measures one; v1 has one by then, and is swapped in hot."""
    checkpoints = Path(stack.control("GET", "/v1/fleet").json()["policies"][0]["desired"]["path"]).parents[1]
    desire(stack, "v2", checkpoints)
    wait_until(lambda: converged(stack), "the cold load", START_SECONDS)
    stack.settle()
    ask = {"model": "policy", "messages": HI, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    began: list[str] = []
    swapped = threading.Event()

    def talk() -> None:
        while not swapped.is_set():
            stream = client.chat.completions.create(**ask, stream=True)
            began.append(next(stream).id)
            assert list(stream)

    with ThreadPoolExecutor() as pool:
        talks = [pool.submit(talk) for _ in range(3)]
        wait_until(lambda: len(began) >= 3, "three answers under way")
        desire(stack, "v1", checkpoints)
        wait_until(lambda: converged(stack), "the swap")
        swapped.set()
        for talking in talks:
            talking.result()
    swap = stack.control("GET", "/v1/swaps?policy=policy").json()["swaps"][-1]
    assert (swap["load"], swap["to_version"], swap.get("error")) == ("hot", "v1", None)
    turns = [turn for turn_id in began for turn in stack.turns(turn_id)]
    assert all(turn.check() is None for turn in turns)
    assert ["v2", "v1"] in [[span.version for span in turn.weight_versions] for turn in turns]
    stack.settle()
    after = client.chat.completions.create(model="policy", messages=HI, max_tokens=5)
    assert [span.version for span in stack.turns(after.id)[0].weight_versions] == ["v1"]


def desire(stack: Stack, version: str, checkpoints: Path) -> None:
    """Sets the version that the policy's engines should serve."""
    body = {"version": version, "path": str(checkpoints / version / EXPORT)}
    stack.control("PUT", "/v1/policies/policy/desired", body).raise_for_status()
