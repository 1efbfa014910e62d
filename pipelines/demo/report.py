"""From facts to the report: `report.json`, and the sentences that say what is wrong.

Pure functions. `problems` is not empty whenever a promise of the demo was not kept; then the demo ends with exit
code 1, whatever else went well.
"""

import random
from collections.abc import Iterator
from typing import Any

from pipelines.demo.facts import Facts
from pipelines.demo.measure import Comparison, Measured, compare
from pipelines.records import Outcome, Run, RunState, Stage

SHOWN_ANSWERS = 8
GROUP = 16
"""Turns that one dot of the picture stands for."""


def build(facts: Facts) -> dict[str, Any]:
    """The report as JSON-like values."""
    found = compare(facts.before, facts.after)
    done = [run for run in facts.runs if run.state == RunState.DONE]
    outcomes = [run.outcome for run in done]
    report: dict[str, Any] = {
        "acceptance_before": round(found.before, 4),
        "acceptance_after": round(found.after, 4),
        "difference": round(found.difference, 4),
        "difference_interval": [round(found.low, 4), round(found.high, 4)],
        "questions": len(facts.before.questions),
        "answers_per_question": len(facts.before.truths[0]),
        "cycles": len(done),
        "promotions": outcomes.count(Outcome.PROMOTED),
        "held": outcomes.count(Outcome.HELD),
        "rejected": outcomes.count(Outcome.REJECTED),
        "stopped": sum(map(outcomes.count, (Outcome.TRAINING_STOPPED, Outcome.GATE_FAILED, Outcome.ROLLED_BACK))),
        "failed_requests": facts.tally.failed_requests,
        "failed_feedback": facts.tally.failed_feedback,
        "failures": facts.tally.failures,
        "retries": facts.tally.retries
        + sum(a.retries for m in (facts.before, facts.after) for r in m.answers for a in r),
        "turns": len(facts.turns),
        "captured": len(facts.turns & facts.captured),
        "feedback": facts.tally.feedback_sent,
        "states": facts.states,
        "log": facts.log,
        "seconds": round(facts.finished_at - facts.started_at, 1),
        "steps": {name: round(seconds, 1) for name, seconds in facts.steps.items()},
        "stages": stage_seconds(done),
        "swaps": list(_swaps(facts, done)),
        "base": {"version": facts.before.version, "users": _users(facts, facts.before.version)},
        "versions": list(_versions(facts, done)),
        "answers": _answers(facts.before, facts.after, facts.seed),
        "series": _series(facts),
        "addresses": vars(facts.addresses),
    }
    report["problems"] = list(_problems(facts, report, found))
    return report


def stage_seconds(runs: list[Run]) -> dict[str, float]:
    """Mean seconds of each stage, over the runs that finished it."""
    spent: dict[str, list[float]] = {stage: [] for stage in Stage}
    for run in runs:
        for record in run.stages:
            if record.finished_at is not None:
                spent[record.stage].append(record.finished_at - record.started_at)
    return {stage: round(sum(all_) / len(all_), 1) for stage, all_ in spent.items() if all_}


def _swaps(facts: Facts, runs: list[Run]) -> Iterator[dict]:
    for run in runs:
        result = run.result(Stage.ROLL_OUT) or {}
        for swap in result.get("swaps", ()):
            kept = ("engine_id", "from_version", "to_version", "pause_ms", "load_ms", "verify_ms", "total_ms")
            told = ("checksum_equal", "logprob_difference", "error")
            yield {
                **{key: swap[key] for key in kept},
                **{key: swap[key] for key in told if swap.get(key) not in (None, "")},
                "converged_ms": round(result["converged_ms"], 1),
                "at": swap["started_at"],
                "in_flight": _in_flight(facts, swap["started_at"], swap["total_ms"] / 1000),
            }


def _in_flight(facts: Facts, began: float, seconds: float) -> int:
    """Users' requests that were in progress at some time of the swap."""
    return sum(x.at >= began and x.at - x.seconds <= began + seconds for x in facts.exchanges)


def _versions(facts: Facts, runs: list[Run]) -> Iterator[dict]:
    for run in runs:
        verdict = run.result(Stage.EVALUATE) or {}
        trained = run.result(Stage.TRAIN) or {}
        numbers = ("champion_mean", "challenger_mean", "difference", "low", "high")
        yield {
            "version": run.checkpoint_id,
            "parent": trained.get("parent"),
            "outcome": str(run.outcome),
            "reason": run.reason,
            **{key: round(verdict[key], 4) for key in numbers if key in verdict},
            "look": verdict.get("look"),
            "failed_guards": [guard["name"] for guard in verdict.get("guards", ()) if not guard["passed"]],
            "rows": (run.result(Stage.GATE) or {}).get("rows"),
            "realised_update": trained.get("realised_update"),
            "metrics": trained.get("metrics", {}),
            "users": _users(facts, run.checkpoint_id),
        }


def _users(facts: Facts, version: str) -> dict:
    truths = [x.truth for x in facts.exchanges if x.version == version and x.truth is not None]
    return {"turns": len(truths), "acceptance": round(sum(truths) / len(truths), 4) if truths else None}


def _answers(before: Measured, after: Measured, seed: int) -> list[dict]:
    """A few questions and one answer to each, before and after, drawn with a fixed seed: not the best ones."""
    rng = random.Random(seed)
    drawn = sorted(rng.sample(range(len(before.questions)), min(SHOWN_ANSWERS, len(before.questions))))
    return [
        {
            "question": before.questions[row]["question"],
            **{
                name: {"text": side.answers[row][column].text, "acceptance": round(side.truths[row][column], 3)}
                for name, side, column in (
                    ("before", before, rng.randrange(len(before.answers[row]))),
                    ("after", after, rng.randrange(len(after.answers[row]))),
                )
            },
        }
        for row in drawn
    ]


def _series(facts: Facts) -> dict:
    """Acceptance of users' turns over time, `GROUP` turns a point, and when each version came into service."""
    # In the order of asking: in that of answering, the short answers of a burst would make its first dots.
    turns = sorted((x for x in facts.exchanges if x.truth is not None), key=lambda x: x.at - x.seconds)
    points = []
    for i in range(0, len(turns), GROUP):
        group = turns[i : i + GROUP]
        at = sum(x.at for x in group) / len(group) - facts.started_at
        points.append([round(at, 1), round(sum(x.truth or 0.0 for x in group) / len(group), 4)])
    live = [{"version": facts.before.version, "seconds": 0.0}]
    for run in facts.runs:
        record = run.stage(Stage.ROLL_OUT)
        if run.outcome == Outcome.PROMOTED and record and record.finished_at:
            live.append({"version": run.checkpoint_id, "seconds": round(record.finished_at - facts.started_at, 1)})
    return {"points": points, "live": live}


def _problems(facts: Facts, report: dict, found: Comparison) -> Iterator[str]:
    if report["cycles"] < facts.planned_cycles:
        yield f"Only {report['cycles']} of {facts.planned_cycles} cycles came to an end."
    if report["failed_requests"]:
        yield f"{report['failed_requests']} requests of users failed ({_kinds(report['failures'])})."
    if report["failed_feedback"]:
        yield f"{report['failed_feedback']} times feedback could not be given ({_kinds(report['failures'])})."
    if report["captured"] < report["turns"]:
        yield f"{report['turns'] - report['captured']} of {report['turns']} turns are missing from the lake."
    if not report["promotions"]:
        yield "No version was promoted."
    if failed := [swap for swap in report["swaps"] if "error" in swap]:
        yield f"{len(failed)} swaps of engines failed: {failed[0]['error']}"
    if report["promotions"] and not report["swaps"]:
        yield "A version was promoted, and no engine was swapped."
    promoted = [run.checkpoint_id for run in facts.runs if run.outcome == Outcome.PROMOTED]
    if (last := promoted[-1] if promoted else facts.before.version) != facts.after.version:
        yield f"At the end {facts.after.version} answered, where {last} was promoted last."
    if found.low <= 0:
        yield f"No lift was proven: the 95 % interval of the difference begins at {found.low:+.3f}."


def _kinds(failures: dict[str, int]) -> str:
    return ", ".join(f"{number} × {kind}" for kind, number in failures.items())
