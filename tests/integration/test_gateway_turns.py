"""Turns through a real gateway: unmodified clients, real sockets, a scripted engine, the real spool."""

import base64
import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Finish, Turn
from tests.integration.serving_stack import Stack, running, wait_until

pytestmark = pytest.mark.integration
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("turns")) as stack:
        stack.shared_key = stack.key()
        stack.engine_url = json.loads(stack.control("GET", "/v1/fleet").content)["engines"][0]["url"]
        yield stack


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.shared_key, max_retries=0, timeout=60)


def script(stack: Stack, **order: object) -> None:
    httpx.post(f"{stack.engine_url}/stand-in", json=order).raise_for_status()


def told(stack: Stack) -> dict:
    return httpx.get(f"{stack.engine_url}/stand-in").json()


def same(turn: Turn, sent: dict, call: int = 0, sample: int = 0) -> None:
    """The turn is, byte for byte, what the engine says it sent."""
    call = sent["calls"][call]
    sample = call["samples"][sample]
    assert turn.check() is None
    assert _bytes(call["prompt_ids"]) == turn.prompt_ids
    assert _bytes(sample["output_ids"]) == turn.output_ids
    assert _bytes(sample["logprobs"]) == turn.logprobs
    assert [list(span) for span in sample["weight_versions"]] == [
        [s.version, s.start, s.end] for s in turn.weight_versions
    ]


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def test_a_plain_answer_is_recorded_exactly(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="policy", messages=HI, user="anna", metadata={"kind": "howto"})
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "policy"
    (turn,) = stack.turns(answer.id)
    same(turn, told(stack)["sent"][answer.id.removeprefix("chatcmpl-")])
    assert "".join(f"w{token} " for token in unpack_ids(turn.output_ids)) == answer.choices[0].message.content
    assert len(unpack_logprobs(turn.logprobs)) == 8
    assert (turn.finish, turn.policy, turn.dialect, turn.arm) == (Finish.STOP, "policy", "chat", "champion")
    assert turn.trainable
    assert turn.engine_build == "stand-in"
    assert json.loads(turn.request)["metadata"] == {"kind": "howto"}
    assert json.loads(turn.answer) == {"role": "assistant", "content": answer.choices[0].message.content}
    assert turn.subject
    assert "anna" not in repr(turn)


def test_a_stream_is_recorded_exactly_and_carries_nothing_of_the_tap(stack: Stack) -> None:
    body = {"model": "policy", "messages": HI, "stream": True}
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    answer = httpx.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    data, turn_id = answer.content, answer.headers["x-everloop-turn-id"]
    assert answer.headers["x-everloop-version"] == "base"
    assert answer.headers["x-request-id"] == turn_id
    assert data.endswith(b"data: [DONE]\n\n")
    assert b"everloop" not in data
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    assert {event["id"] for event in events} == {turn_id}
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    (turn,) = stack.turns(turn_id)
    same(turn, told(stack)["sent"][turn_id.removeprefix("chatcmpl-")])
    assert json.loads(turn.answer)["content"] == text
    assert turn.trainable


def test_the_openai_client_streams(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="policy", messages=HI, stream=True))
    assert len(chunks) == 8
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_several_samples_are_several_turns(stack: Stack, client: openai.OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(model="policy", messages=HI, n=3, stream=stream)
    turn_id = {chunk.id for chunk in answer}.pop() if stream else answer.id
    turns = stack.turns(turn_id, 3)
    sent = told(stack)["sent"][turn_id.removeprefix("chatcmpl-")]
    for index, turn in enumerate(turns):
        same(turn, sent, sample=index)
    assert len({turn.session_id for turn in turns}) == 3


def test_completions_of_several_prompts(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="policy", prompt=["a", "b"], n=2, max_tokens=3)
    assert answer.id.startswith("cmpl-")
    turns = stack.turns(answer.id, 4)
    sent = told(stack)["sent"][answer.id.removeprefix("cmpl-")]
    for index, turn in enumerate(turns):
        same(turn, sent, call=index // 2, sample=index % 2)
    streamed = list(client.completions.create(model="policy", prompt="a", stream=True))
    assert stack.turns(streamed[0].id)[0].finish is Finish.STOP


def test_tool_calls_are_named_as_such(stack: Stack, client: openai.OpenAI) -> None:
    ask = {"model": "policy", "messages": [{"role": "user", "content": "call_tool"}]}
    plain = client.chat.completions.create(**ask)
    assert stack.turns(plain.id)[0].finish is Finish.TOOL_CALLS
    chunks = list(client.chat.completions.create(**ask, stream=True))
    (turn,) = stack.turns(chunks[0].id)
    assert turn.finish is Finish.TOOL_CALLS
    assert json.loads(turn.answer)["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":1}'}


def test_a_conversation_is_one_session_and_a_named_one_is_its_callers(stack: Stack, client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="policy", messages=HI)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    second = client.chat.completions.create(model="policy", messages=[*HI, said, *HI])
    other = client.chat.completions.create(model="policy", messages=HI)
    parent, child, stranger = (stack.turns(answer.id)[0] for answer in (first, second, other))
    assert parent.session_id == child.session_id != stranger.session_id
    assert parent.prefix_hashes[-1] in child.prefix_hashes[:-2]
    body = {"target": "session_of_turn", "id": second.id, "kind": "outcome", "value": 1}
    client.post("/feedback", body=body, cast_to=dict)
    wait_until(
        lambda: any(isinstance(e, Feedback) and e.target_id == second.id for e in stack.events()), "the feedback"
    )
    named = [
        client.chat.completions.create(model="policy", messages=HI, extra_headers={"x-everloop-session": "s-1"})
        for _ in range(2)
    ]
    one, two = (stack.turns(answer.id)[0].session_id for answer in named)
    assert one == two
    client.post("/feedback", body={"target": "session", "id": "s-1", "kind": "outcome", "value": 1}, cast_to=dict)
    wait_until(lambda: any(isinstance(e, Feedback) and e.target_id == one for e in stack.events()), "the feedback")


def test_ids_fields_and_headers_of_a_caller_never_steer_the_engine(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="policy",
        messages=HI,
        max_tokens=64_000,
        extra_body={"request_id": "mine", "surprise": 1},
        extra_headers={"X-Request-Id": "mine", "x-everloop-tap": "guess"},
    )
    state = told(stack)
    headers, body = state["headers"][-1], state["requests"][-1]
    assert answer.id == "chatcmpl-" + headers["x-request-id"] != "chatcmpl-mine"
    assert headers["x-everloop-tap"] == "engine-token"
    assert set(body) == {"messages", "max_tokens", "model", "cache_salt"}
    assert body["max_tokens"] == 4096
    with pytest.raises(openai.PermissionDeniedError) as refused:
        client.chat.completions.create(model="policy", messages=HI, extra_body={"priority": -1})
    assert refused.value.body["code"] == "insufficient_role"


def test_sampling_decides_what_is_trainable(stack: Stack, client: openai.OpenAI) -> None:
    for sampling, reason in (({"temperature": 0}, "greedy"), ({"top_p": 0.5}, "truncated")):
        answer = client.chat.completions.create(model="policy", messages=HI, **sampling)
        assert stack.turns(answer.id)[0].untrainable_reason == reason
    no_training = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.key(train=False))
    answer = no_training.chat.completions.create(model="policy", messages=HI)
    assert stack.turns(answer.id)[0].untrainable_reason == "opted out"


def test_a_request_may_opt_out_of_training(stack: Stack, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="policy", messages=HI, extra_headers={"x-everloop-train": "no"})
    (turn,) = stack.turns(answer.id)
    assert (turn.trainable, turn.untrainable_reason) == (False, "opted out")


def test_versions_seen_in_mid_answer_are_spans(stack: Stack, client: openai.OpenAI) -> None:
    script(stack, delay=0.05)
    stream = client.chat.completions.create(model="policy", messages=HI, stream=True)
    turn_id = next(stream).id
    script(stack, version="next")
    assert len(list(stream)) == 7
    script(stack, delay=0.0, version="base")
    (turn,) = stack.turns(turn_id)
    same(turn, told(stack)["sent"][turn_id.removeprefix("chatcmpl-")])
    assert [span.version for span in turn.weight_versions] == ["base", "next"]


def test_feedback_is_accepted_before_its_turn_alone_and_in_batches(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    one = {"target": "turn", "id": "chatcmpl-not-yet", "kind": "accept", "idempotency_key": "k-1"}
    answer = httpx.post(f"{stack.gateway_url}/v1/feedback", json=one, headers=headers)
    assert answer.status_code == 202
    batch = {"items": [{**one, "kind": "reject"}, {**one, "kind": "edit", "text": "better", "idempotency_key": "k-2"}]}
    answer = httpx.post(f"{stack.gateway_url}/v1/feedback/batch", json=batch, headers=headers)
    assert answer.status_code == 202
    bad = {"items": [one, {"target": "turn"}]}
    answer = httpx.post(f"{stack.gateway_url}/v1/feedback/batch", json=bad, headers=headers)
    assert answer.status_code == 400
    assert "Signal 1" in answer.json()["error"]["message"]

    def recorded() -> list[Feedback]:
        return [e for e in stack.events() if isinstance(e, Feedback) and e.target_id == "chatcmpl-not-yet"]

    wait_until(lambda: len(recorded()) == 3, "three signals")
    assert recorded()[0].feedback_id == recorded()[1].feedback_id != recorded()[2].feedback_id


def test_models_are_the_policies(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["policy"]
    assert client.models.retrieve("policy").id == "policy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_metrics_count_by_policy_version_and_arm_and_name_nobody(stack: Stack, client: openai.OpenAI) -> None:
    name = 'everloop_turns_total{arm="champion",finish="stop",policy="policy",version="base"}'
    before = stack.metrics().get(name, 0.0)
    client.chat.completions.create(model="policy", messages=HI, user="anna")
    metrics = stack.metrics()
    assert metrics[name] == before + 1
    assert metrics['everloop_captures_total{arm="champion",policy="policy",version="base"}'] > 0
    assert not any("anna" in metric or "key-" in metric for metric in metrics)
    assert httpx.get(f"{stack.gateway_url}/metrics").status_code == 404


# -- faults


def test_a_caller_that_hangs_up_leaves_an_aborted_turn(stack: Stack, client: openai.OpenAI) -> None:
    script(stack, faults=["hold"])
    stream = client.chat.completions.create(model="policy", messages=HI, stream=True)
    turn_id = next(iter(stream)).id
    stream.close()
    (turn,) = stack.turns(turn_id)
    assert turn.finish is Finish.ABORT
    assert not turn.trainable
    assert len(unpack_ids(turn.output_ids)) == 1
    assert told(stack)["aborted"][-1] == turn_id.removeprefix("chatcmpl-")


@pytest.mark.parametrize(("fault", "tokens"), [("hold", 1), ("deaf", 8)])
def test_a_caller_that_hangs_up_on_a_plain_answer_leaves_one_too(stack: Stack, fault: str, tokens: int) -> None:
    """`deaf`: the engine had finished when it heard of the abort, but nobody was shown what it made."""
    script(stack, faults=[fault])
    before = len(told(stack)["aborted"])
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{stack.gateway_url}/v1/chat/completions",
            json={"model": "policy", "messages": HI},
            headers={"authorization": f"Bearer {stack.shared_key}"},
            timeout=httpx.Timeout(60, read=2),
        )
    wait_until(lambda: len(told(stack)["aborted"]) > before, "the abort")
    (turn,) = stack.turns("chatcmpl-" + told(stack)["aborted"][-1])
    assert turn.finish is Finish.ABORT
    assert not turn.trainable
    assert len(unpack_ids(turn.output_ids)) == tokens


@pytest.mark.parametrize("fault", ["drop", "error500"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_before_its_first_byte_is_asked_once_more(
    stack: Stack, client: openai.OpenAI, fault: str, stream: bool
) -> None:
    script(stack, faults=[fault])
    answer = client.chat.completions.create(model="policy", messages=HI, stream=stream)
    turn_id = {chunk.id for chunk in answer}.pop() if stream else answer.id
    assert stack.turns(turn_id)[0].finish is Finish.STOP


def test_engines_that_only_fail_are_a_502_that_says_when_to_retry(stack: Stack, client: openai.OpenAI) -> None:
    script(stack, faults=["error500", "drop"])
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="policy", messages=HI)
    assert failed.value.status_code == 502
    assert failed.value.body["code"] == "engine_failed"
    assert failed.value.response.headers["retry-after"] == "1"
    (turn,) = stack.turns(failed.value.response.headers["x-request-id"])
    assert (turn.finish, turn.trainable) == (Finish.ENGINE_LOST, False)


def test_a_request_that_engines_fail_on_is_told_so(stack: Stack, client: openai.OpenAI) -> None:
    script(stack, faults=["error500", "error500"])
    with pytest.raises(openai.InternalServerError, match="failed on this request") as failed:
        client.chat.completions.create(model="policy", messages=HI)
    assert (failed.value.status_code, failed.value.body["code"]) == (502, "engine_error")
    assert client.chat.completions.create(model="policy", messages=HI).choices


def test_an_engine_lost_in_mid_answer_is_an_error_event_and_a_turn(stack: Stack, client: openai.OpenAI) -> None:
    script(stack, faults=["cut"])
    stream = client.chat.completions.create(model="policy", messages=HI, stream=True)
    turn_id = next(stream).id
    with pytest.raises(openai.APIError, match="went away"):
        list(stream)
    (turn,) = stack.turns(turn_id)
    assert turn.finish is Finish.ENGINE_LOST
    assert not turn.trainable


def test_the_engines_own_refusal_reaches_the_caller(client: openai.OpenAI, stack: Stack) -> None:
    script(stack, faults=["error400"])
    with pytest.raises(openai.BadRequestError, match="scripted refusal"):
        client.chat.completions.create(model="policy", messages=HI, stream=True)


def test_an_error_event_of_the_engine_passes(client: openai.OpenAI, stack: Stack) -> None:
    script(stack, faults=["error_event"])
    stream = client.chat.completions.create(model="policy", messages=HI, stream=True)
    turn_id = next(stream).id
    with pytest.raises(openai.APIError, match="scripted"):
        list(stream)
    assert stack.turns(turn_id)[0].finish is Finish.ERROR


@pytest.mark.parametrize("fault", ["no_record", "damaged_record"])
def test_a_lost_record_is_fetched_again_or_costs_the_answer(stack: Stack, client: openai.OpenAI, fault: str) -> None:
    script(stack, faults=[fault])
    if fault == "damaged_record":
        answer = client.chat.completions.create(model="policy", messages=HI)
        same(stack.turns(answer.id)[0], told(stack)["sent"][answer.id.removeprefix("chatcmpl-")])
        return
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="policy", messages=HI)
    assert failed.value.status_code == 503
    assert failed.value.body["code"] == "capture_failed"
    lost = 'everloop_captures_lost_total{arm="champion",policy="policy",reason="no_record",version=""}'
    assert stack.metrics()[lost] >= 1
