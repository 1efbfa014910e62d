"""Whether a sample may be trained on as it was logged: one pure function, DESIGN §3.

Exact as logged: temperature 1, no truncation, no penalties, nothing that constrains the output, a complete
record. Everything else carries its reason, so that counts by reason say what a policy's traffic loses.
"""

from ingest.contracts.tap import TapCall, TapSample
from ingest.contracts.turn import Finish

_NEUTRAL: dict[str, tuple[str, frozenset[float | None]]] = {
    "top_p": ("truncated", frozenset({None, 1})),
    "top_k": ("truncated", frozenset({None, 0, -1})),
    "min_p": ("truncated", frozenset({None, 0})),
    "presence_penalty": ("penalties", frozenset({None, 0})),
    "frequency_penalty": ("penalties", frozenset({None, 0})),
    "repetition_penalty": ("penalties", frozenset({None, 1})),
    "min_tokens": ("constrained: min_tokens", frozenset({None, 0})),
}
"""Sampling parameters that change the distribution: the reason they give, and the values that change nothing."""


def why_untrainable(
    call: TapCall | None, sample: TapSample | None, finish: Finish, *, trains: bool, arm: str
) -> str | None:
    """Why a sample is not trainable as logged; None where it is.

    `call` and `sample` are the engine's record, None where it was lost. `trains`: the key and the request consent.
    """
    if not trains:
        return "opted out"
    if arm == "evaluation":
        return "evaluation"
    if finish in (Finish.ABORT, Finish.ERROR, Finish.ENGINE_LOST):
        return f"unfinished: {finish}"
    if call is None or sample is None or not call.prompt_ids:
        return "no record"
    if not sample.output_ids:
        return "empty"
    if len(sample.logprobs) != len(sample.output_ids):
        return "no logprobs"
    if call.constrained:
        return f"constrained: {call.constrained}"
    temperature = call.sampling.get("temperature", 1.0)
    if temperature == 0:
        return "greedy"
    if temperature not in (None, 1):
        return "temperature"
    for name, (reason, neutral) in _NEUTRAL.items():
        if call.sampling.get(name) not in neutral:
            return reason
    return None
