"""The demo's report, from made-up facts: numbers, sentences for what failed, and a page on which nothing runs."""

import dataclasses
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from pipelines.demo.facts import Addresses, Facts
from pipelines.demo.measure import Measured, compare
from pipelines.demo.page import page
from pipelines.demo.report import build
from pipelines.records import Outcome, Run, RunState, Stage, StageRecord, StageState
from pipelines.simulate.traffic import Answer, Exchange, Tally

HOSTILE = "<script>alert('x')</script> & \"quoted\" <img src=x onerror=y>"


def measured(version: str, truths: list[list[float]], text: str = "It is so.") -> Measured:
    questions = tuple({"id": str(i), "question": f"Question {i}?", "meta": {}} for i in range(len(truths)))
    answers = tuple(
        tuple(Answer(text, "stop", f"{version}-{i}-{j}", version, 0.1, 0) for j in range(len(row)))
        for i, row in enumerate(truths)
    )
    return Measured(version, questions, answers, tuple(tuple(row) for row in truths))


def stage(name: Stage, at: float, result: dict) -> StageRecord:
    return StageRecord(
        stage=name, state=StageState.FINISHED, attempts=1, started_at=at, finished_at=at + 2, result=result
    )


def run(number: int, outcome: Outcome) -> Run:
    at = 1000.0 + 60 * number
    checkpoint = f"c{number:04d}-abc"
    verdict = {
        "champion_mean": 0.4,
        "challenger_mean": 0.5,
        "difference": 0.1,
        "low": 0.05,
        "high": 0.15,
        "look": 1,
        "guards": [{"name": "echo", "passed": outcome != Outcome.REJECTED}],
    }
    swap = {
        "engine_id": "e1",
        "from_version": "base",
        "to_version": checkpoint,
        "pause_ms": 31.5,
        "load_ms": 600.0,
        "verify_ms": 90.0,
        "total_ms": 800.0,
        "started_at": at + 11,
    }
    stages = [
        stage(Stage.GATE, at + 2, {"rows": 96}),
        stage(Stage.TRAIN, at + 4, {"parent": "base", "metrics": {"k3": 0.01}, "realised_update": 0.2}),
        stage(Stage.EVALUATE, at + 6, verdict),
    ]
    if outcome == Outcome.PROMOTED:
        stages.append(stage(Stage.ROLL_OUT, at + 10, {"swaps": [swap], "converged_ms": 1500.0}))
    return Run(
        run_id=f"r{number:04d}-abc",
        policy="demo",
        number=number,
        state=RunState.DONE,
        started_at=at,
        updated_at=at + 12,
        finished_at=at + 12,
        outcome=outcome,
        reason="because " + HOSTILE,
        stages=tuple(stages),
    )


def facts() -> Facts:
    rng = np.random.default_rng(0)
    before = measured("base", rng.uniform(0.2, 0.5, (40, 8)).tolist(), HOSTILE)
    after = measured("c0001-abc", rng.uniform(0.5, 0.9, (40, 8)).tolist(), "A better answer.")
    exchanges = tuple(
        Exchange(
            at=1000.0 + i,
            turn_id=f"t{i}",
            version="base" if i < 60 else "c0001-abc",
            question="q",
            kind="facts",
            truth=0.4 if i < 60 else 0.7,
            said=None,
            finish="stop",
            words=6,
            seconds=0.5,
        )
        for i in range(100)
    )
    turns = frozenset(f"t{i}" for i in range(100))
    return Facts(
        planned_cycles=2,
        started_at=1000.0,
        finished_at=1200.0,
        steps={"start": 60.0, "cycles": 130.0},
        runs=(run(1, Outcome.PROMOTED), run(2, Outcome.REJECTED)),
        exchanges=exchanges,
        tally=Tally(turns=100, feedback_sent=75),
        before=before,
        after=after,
        turns=turns,
        captured=turns | {"another"},
        states={"settled": 75, "silent": 25},
        log="embedded",
        addresses=Addresses("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"),
    )


def test_the_interval_is_scipys_paired_interval() -> None:
    made = facts()
    found = compare(made.before, made.after)
    before, after = (np.array(side.truths).mean(axis=1) for side in (made.before, made.after))
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.difference == pytest.approx(float((after - before).mean()))


def test_another_version_than_the_last_promoted_at_the_end_is_a_problem() -> None:
    made = facts()
    report = build(replace(made, after=replace(made.after, version="base")))
    assert report["problems"] == ["At the end base answered, where c0001-abc was promoted last."]


def test_report_of_a_demo_that_kept_its_promises() -> None:
    report = build(facts())
    assert report["problems"] == []
    assert report["difference_interval"][0] > 0
    counted = ("cycles", "promotions", "rejected", "held", "failed_requests", "turns", "captured")
    assert [report[key] for key in counted] == [2, 1, 1, 0, 0, 100, 100]
    assert report["swaps"][0]["pause_ms"] == 31.5
    assert report["swaps"][0]["converged_ms"] == 1500.0
    assert report["swaps"][0]["in_flight"] == 2  # 71.0 to 71.8: exchanges that end at 71.0 and begin at 71.5
    assert report["stages"]["train"] == 2.0
    assert report["base"]["users"] == {"turns": 60, "acceptance": 0.4}
    first, second = report["versions"]
    assert (first["outcome"], first["users"]["turns"], first["failed_guards"]) == ("promoted", 40, [])
    assert (second["outcome"], second["failed_guards"]) == ("rejected", ["echo"])
    assert [live["version"] for live in report["series"]["live"]] == ["base", "c0001-abc"]
    assert json.loads(json.dumps(report)) == report


def test_shown_answers_are_drawn_with_a_fixed_seed() -> None:
    assert build(facts())["answers"] == build(facts())["answers"]
    assert build(facts())["answers"] != build(dataclasses.replace(facts(), seed=1))["answers"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"planned_cycles": 5}, "Only 2 of 5 cycles"),
        ({"tally": Tally(failed_requests=3, failures={"APITimeoutError": 3})}, "3 requests of users failed (3 × API"),
        ({"tally": Tally(failed_feedback=1, failures={"NotFoundError 404": 1})}, "1 times feedback could not be given"),
        ({"captured": frozenset({"t1"})}, "99 of 100 turns are missing"),
        ({"runs": (run(1, Outcome.HELD), run(2, Outcome.REJECTED))}, "No version was promoted."),
        ({"after": facts().before}, "No lift was proven"),
    ],
)
def test_what_failed_is_said_and_stands_on_the_page(change: dict, said: str) -> None:
    report = build(dataclasses.replace(facts(), **change))
    assert any(said in problem for problem in report["problems"])
    assert "This run failed." in page(report)


def test_the_page_runs_nothing_and_fetches_nothing() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()
            self.fetched: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.add(tag)
            self.fetched += [value or "" for name, value in attrs if name == "src" or name.startswith("on")]

    text = page(build(facts()))
    tags = Tags()
    tags.feed(text)
    assert not tags.seen & {"script", "img", "iframe", "link"}
    assert tags.fetched == []
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in text
    assert {"svg", "circle", "polyline"} <= tags.seen
