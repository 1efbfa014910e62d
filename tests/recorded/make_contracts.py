"""Makes what is below `tests/recorded/contracts`: each event as its bytes on the log, each manifest as its file.

`v<schema>/<contract>-<digest of its fields>/<case>.msgpack` (or `.json`), and beside it `<case>.expected.json`: every
field that a reader found in it then, defaults included, bytes in hex. A recording is made once, by the code of its
time, and never again: later code must read it and find the same.

    .venv/bin/python -m tests.recorded.make_contracts

records the contracts whose fields have changed since their last recording. It writes over nothing.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.dataset import Baseline, DatasetManifest, GateCheck, Succession
from ingest.contracts.erasure import TARGETS, Erasure, erasure_digest
from ingest.contracts.events import Lost, decode_event, encode_event
from ingest.contracts.feedback import Feedback, Kind
from ingest.contracts.files import FileEntry, digest_of, read_manifest, write_manifest
from ingest.contracts.rollout import Rollout, RolloutState
from ingest.contracts.tap import TapCall, TapRecord, TapSample, decode_tap, encode_tap
from ingest.contracts.turn import Finish, Span, Turn
from ingest.contracts.verdict import Decision, Guard, Verdict

ROOT = Path(__file__).parent / "contracts"

_AT = 1_800_000_000.25
_TURN: dict[str, Any] = {
    "turn_id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "policy": "assistant",
    "dialect": "chat",
    "key_id": "key-0123456789abcdef",
    "subject": "a" * 32,
    "session_id": "b" * 32,
    "engine_id": "engine-1",
    "started_at": _AT,
    "finished_at": _AT + 2,
}
_LOGPROBS = (-0.5, -1.25, -0.0, -17.0)
_TOKENS: dict[str, Any] = {
    "prompt_ids": pack_ids([1, 2, 49151]),
    "output_ids": pack_ids([5, 6, 7, 2]),
    "logprobs": pack_logprobs(_LOGPROBS),
    "weight_versions": (Span("base", 0, 1), Span("ck-1", 1, 3), Span("ck-2", 3, 4)),
    "sampling": {"temperature": 1.0, "top_k": -1, "ignore_eos": False, "guided": None, "stop": "END"},
}
_FULL = (
    _TURN
    | _TOKENS
    | {
        "sample": 2,
        "prefix_hashes": ("c" * 32, "d" * 32),
        "engine_build": "vllm 0.11, bfloat16, tp1",
        "arm": "canary",
        "experiment": "x-1",
        "first_token_at": _AT + 1,
        "request": '{"messages":[{"role":"user","content":"Grüße 🙂"}]}',
        "answer": '{"role":"assistant","content":"Hallo"}',
    }
)
_FEEDBACK: dict[str, Any] = {
    "target": "turn",
    "target_id": _TURN["turn_id"],
    "key_id": _TURN["key_id"],
    "occurred_at": _AT + 60,
    "received_at": _AT + 61,
}
_SAID: dict[Kind, dict[str, Any]] = {
    Kind.SCORE: {"value": -0.25},
    Kind.EDIT: {"text": "What the user kept."},
    Kind.COMMENT: {"text": "Grüße 🙂"},
    Kind.OUTCOME: {"value": 1.0, "target": "session", "target_id": "b" * 32},
    Kind.ABSTAIN: {"target": "session_of_turn", "source": "application"},
}
_ROWS = FileEntry("rows.parquet", 4096, "e" * 64)
_DATASET: dict[str, Any] = {
    "dataset_id": "ds-1",
    "policy": "assistant",
    "created_at": _AT,
    "cut_at": _AT - 1,
    "lake_versions": {"turns": 7, "feedback": 6},
    "log_ranges": {"f" * 32: (1, 90)},
    "pairs": ((_TURN["turn_id"], 0, 1), (_TURN["turn_id"], 1, 0)),
    "counts": {"settled": 2, "silent": 40},
    "reward_specification": {"accept": 1.0, "implicit": {"regenerated": -0.5}},
    "reward_digest": "1" * 64,
    "baselines": {"assistant": Baseline(0.25, 12.5)},
    "rows": _ROWS,
    "statistics": {"reward_mean": 0.5, "language.de": 1.0},
}
_DATASET_FULL = _DATASET | {
    "watermark": _AT - 2,
    "versions": ("ck-2", "ck-1"),
    "attribution": {"window_seconds": 3600.0},
    "max_turns": 5000,
    "subtracted": ("ds-0",),
    "reader": {"ingest": "2" * 64, "pyarrow": "21.0.0"},
    "gate": (GateCheck("enough turns", True, "2"), GateCheck("no duplicates", False, "1 twice", (_TURN["turn_id"],))),
    "erased": (Succession("er-1", 3, "3" * 64, _AT + 9),),
}
_CHECKPOINT: dict[str, Any] = {
    "checkpoint_id": "base",
    "policy": "assistant",
    "kind": "base",
    "parent": None,
    "created_at": _AT,
    "files": (FileEntry("export/model.safetensors", 1 << 40, "4" * 64),),
}
_CHECKPOINT_FULL = _CHECKPOINT | {
    "checkpoint_id": "ck-1",
    "kind": "adapter",
    "parent": "base",
    "dataset_id": "ds-1",
    "configuration": {"loss": "cispo", "lora": {"rank": 16}},
    "configuration_digest": "5" * 64,
    "tokenizer_digest": "6" * 64,
    "template_digest": "7" * 64,
    "step": 12,
    "metrics": {"kl": 0.01},
    "realised_update": 0.75,
}
_VERDICT: dict[str, Any] = {
    "run_id": "run-1",
    "policy": "assistant",
    "challenger": "ck-2",
    "champion": "ck-1",
    "reasons": ("better", "no guard failed"),
    "target": "acceptance",
    "champion_mean": 0.5,
    "challenger_mean": 0.625,
    "difference": 0.125,
    "low": 0.0625,
    "high": 0.1875,
    "confidence": 0.975,
    "questions": 200,
    "samples": 800,
    "look": 3,
    "guards": (Guard("length", 120.0, 118.5, 150.0, True),),
    "created_at": _AT,
}
_ROLLOUT: dict[str, Any] = {"policy": "assistant", "checkpoint_id": "ck-1", "updated_at": _AT}

CASES: dict[type, dict[str, Any]] = {
    Turn: {
        "minimal": Turn(**_TURN, finish=Finish.STOP, trainable=False, untrainable_reason="no ids"),
        "full": Turn(**_FULL, finish=Finish.TOOL_CALLS, trainable=False, untrainable_reason="greedy"),
        "trainable": Turn(**_TURN, **_TOKENS, finish=Finish.LENGTH, trainable=True),
        "redacted": Turn(
            **_TURN,
            finish=Finish.STOP,
            request='{"prompt":"write to [REDACTED:email]"}',
            answer="",
            trainable=False,
            untrainable_reason="redacted",
        ),
        **{
            f"failed-{finish}": Turn(**_TURN, finish=finish, trainable=False, untrainable_reason=finish)
            for finish in (Finish.ABORT, Finish.ERROR, Finish.ENGINE_LOST)
        },
    },
    Feedback: {
        "full": Feedback(
            **_FEEDBACK,
            feedback_id="f",
            kind=Kind.SCORE,
            value=0.5,
            text="so",
            sample=1,
            source="user",
            subject="a" * 32,
        ),
        **{
            kind: Feedback(**_FEEDBACK | _SAID.get(kind, {}) | {"feedback_id": f"f-{kind}", "kind": kind})
            for kind in Kind
        },
    },
    Erasure: {
        target: Erasure(erasure_id="er-1", target=target, digest=erasure_digest(target, "a" * 32), requested_at=_AT)
        for target in TARGETS
    },
    Lost: {"damaged": Lost("its bytes were damaged in the spool")},
    TapRecord: {
        "minimal": TapRecord(engine_build="vllm"),
        "full": TapRecord(
            engine_build="vllm 0.11, bfloat16, tp1",
            first_token_at=_AT,
            calls=(
                TapCall(
                    request_id="r-1", prompt_ids=pack_ids([1]), sampling=_TOKENS["sampling"], constrained="grammar"
                ),
                TapCall(
                    request_id="r-2",
                    samples=(
                        TapSample(index=0),
                        TapSample(
                            index=1,
                            output_ids=pack_ids([5, 6]),
                            logprobs=pack_logprobs([-0.5, -0.25]),
                            weight_versions=(Span("base", 0, 1), Span("ck-1", 1, 2)),
                            finish="stop",
                        ),
                    ),
                ),
            ),
        ),
    },
    DatasetManifest: {"minimal": DatasetManifest(**_DATASET), "full": DatasetManifest(**_DATASET_FULL)},
    CheckpointManifest: {"base": CheckpointManifest(**_CHECKPOINT), "full": CheckpointManifest(**_CHECKPOINT_FULL)},
    Verdict: {decision: Verdict(**_VERDICT, decision=decision) for decision in Decision},
    Rollout: {
        "overridden": Rollout(**_ROLLOUT, state=RolloutState.SERVING, reason="said so", overridden_by="operator"),
        **{state: Rollout(**_ROLLOUT, state=state) for state in RolloutState},
    },
}
"""Contract → what is recorded of it, by name. Each field is other than its default in one of them."""


class Wire(NamedTuple):
    """How a contract is written and read: `write` makes the file, `read` gives the value in it."""

    suffix: str
    write: Callable[[Path, Any], object]
    read: Callable[[Path], Any]


def wire(kind: type) -> Wire:
    """The wire form of a contract."""
    if kind is Lost:  # no event for a reader: `decode_event` raises
        return Wire(".msgpack", _write(encode_event), lambda path: msgspec.msgpack.decode(path.read_bytes(), type=Lost))
    if kind in (Turn, Feedback, Erasure):
        return Wire(".msgpack", _write(encode_event), lambda path: decode_event(path.read_bytes()))
    if kind is TapRecord:
        return Wire(".msgpack", _write(encode_tap), lambda path: decode_tap(path.read_bytes()))
    return Wire(
        ".json",
        lambda path, value: write_manifest(path.parent, value, path.name),
        lambda path: read_manifest(path.parent, kind, path.name),
    )


def _write(encode: Callable[[Any], bytes]) -> Callable[[Path, Any], object]:
    return lambda path, value: path.write_bytes(encode(value))


def folder(kind: type) -> Path:
    """Where a contract as it is now is recorded."""
    version = getattr(next(iter(CASES[kind].values())), "schema", 1)
    fields = digest_of(_without_texts(msgspec.json.schema(kind)))[:12]
    return ROOT / f"v{version}" / f"{kind.__name__.lower()}-{fields}"


def _without_texts(schema: Any) -> Any:
    """A JSON Schema without what is there for people."""
    match schema:
        case dict():
            return {k: _without_texts(v) for k, v in schema.items() if k != "description" or isinstance(v, dict)}
        case list():
            return [_without_texts(part) for part in schema]
        case _:
            return schema


def plain(value: Any) -> Any:
    """A value with all its fields, as JSON has it; bytes in hex."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case bytes():
            return value.hex()
        case Enum():
            return value.value
        case _:
            return value


def main() -> None:
    for kind, cases in CASES.items():
        if (place := folder(kind)).exists():
            continue
        place.mkdir(parents=True)
        form = wire(kind)
        for name, value in cases.items():
            form.write(place / f"{name}{form.suffix}", value)
            expected = msgspec.json.format(msgspec.json.encode(plain(value)), indent=1)
            (place / f"{name}.expected.json").write_bytes(expected + b"\n")
        print(place.relative_to(ROOT))


if __name__ == "__main__":
    main()
