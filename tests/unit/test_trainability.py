"""What may be trained on as logged, by the design's rules."""

import pytest

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.tap import TapCall, TapSample
from ingest.contracts.turn import Finish, Span
from serving.gateway.trainability import why_untrainable

SAMPLE = TapSample(
    index=0, output_ids=pack_ids([1]), logprobs=pack_logprobs([-1]), weight_versions=(Span("v", 0, 1),), finish="stop"
)


def reason(sample: TapSample | None = SAMPLE, finish: Finish = Finish.STOP, **call) -> str | None:
    recorded = TapCall(request_id="r", **{"prompt_ids": pack_ids([1]), "sampling": {"temperature": 1.0}, **call})
    return why_untrainable(recorded, sample, finish, trains=True, arm="champion")


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0},
        {"temperature": None, "top_k": -1, "repetition_penalty": 1.0, "frequency_penalty": 0, "max_tokens": 5},
    ],
)
def test_the_models_own_distribution_is_trainable(sampling: dict) -> None:
    assert reason(sampling=sampling) is None
    assert reason(sampling=sampling, finish=Finish.LENGTH) is None
    assert reason(sampling=sampling, finish=Finish.TOOL_CALLS) is None


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 0.7}, "temperature"),
        ({"temperature": 1.0, "top_p": 0.9}, "truncated"),
        ({"temperature": 1.0, "top_k": 50}, "truncated"),
        ({"temperature": 1.0, "min_p": 0.1}, "truncated"),
        ({"temperature": 1.0, "presence_penalty": 0.5}, "penalties"),
        ({"temperature": 1.0, "frequency_penalty": -0.5}, "penalties"),
        ({"temperature": 1.0, "repetition_penalty": 1.1}, "penalties"),
        ({"temperature": 1.0, "min_tokens": 3}, "constrained: min_tokens"),
    ],
)
def test_every_other_distribution_says_why_not(sampling: dict, why: str) -> None:
    assert reason(sampling=sampling) == why


def test_grammars_lost_records_and_unfinished_turns() -> None:
    assert reason(constrained="grammar") == "constrained: grammar"
    assert reason(sample=None) == "no record"
    assert reason(prompt_ids=b"") == "no record"
    assert reason(sample=TapSample(index=0)) == "empty"
    assert reason(sample=TapSample(index=0, output_ids=pack_ids([1]))) == "no logprobs"
    for finish in (Finish.ABORT, Finish.ERROR, Finish.ENGINE_LOST):
        assert reason(finish=finish) == f"unfinished: {finish}"


def test_consent_and_evaluation_come_first() -> None:
    call = TapCall(request_id="r", prompt_ids=pack_ids([1]))
    assert why_untrainable(call, SAMPLE, Finish.STOP, trains=False, arm="champion") == "opted out"
    assert why_untrainable(call, SAMPLE, Finish.STOP, trains=True, arm="evaluation") == "evaluation"
