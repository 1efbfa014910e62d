"""Freezing: the same bytes from the same lake, silence never a row, no turn twice; baselines beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.baselines import COUNT_CAP, SPAN, moving_average
from ingest.chosen import DatasetError
from ingest.config import AttributionSettings, DatasetSettings, RewardSettings
from ingest.contracts.dataset import Baseline, DatasetManifest
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE, ROWS, newest_dataset, used_turns
from ingest.freeze import CandidateReport, freeze
from ingest.rewards import specification_digest
from tests.lakes import feedback, land, read_rows, turn


def cut(lake: Path, dataset_id: str, max_turns: int = 100, now: float = 1000.0, datasets: str = "datasets") -> Any:
    return freeze(
        lake=lake,
        datasets=lake / datasets,
        policy="p",
        dataset_id=dataset_id,
        settings=DatasetSettings(max_turns=max_turns),
        attribution=AttributionSettings(),
        rewards=RewardSettings(),
        now=now,
        watermark=now,
    )


def candidate(lake: Path, dataset_id: str, datasets: str = "datasets") -> DatasetManifest:
    return read_manifest(lake / datasets / "p" / dataset_id, DatasetManifest, CANDIDATE)


def accept(lake: Path, dataset_id: str) -> None:
    """What the gate does when it passes."""
    write_manifest(lake / "datasets" / "p" / dataset_id, candidate(lake, dataset_id))


def judged(lake: Path, *names: str, at: float = 100.0, kind: str = "accept") -> None:
    land(lake, "turns", *[turn(name, finished_at=at + i) for i, name in enumerate(names)])
    land(lake, "feedback", *[feedback(name, kind, received_at=at + 50) for name in names])


def rows(lake: Path, dataset_id: str) -> list[dict]:
    return read_rows(lake / "datasets" / "p" / dataset_id, CANDIDATE).to_pylist()


def test_rows_are_the_turns_as_logged(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a", prompt=[1, 2, 3], output=[7, 8], logprobs=[-0.5, -1.25], version="v1"))
    land(tmp_path, "feedback", feedback("a", "reject"), feedback("a", "accept", received_at=111))
    assert cut(tmp_path, "d1") == CandidateReport(
        policy="p",
        dataset_id="d1",
        rows=1,
        counts={"open": 0, "settled": 1, "silent": 0, "censored": 0, "superseded": 0},
        statistics={
            "rows": 1.0,
            "reward_mean": 0.75,
            "accept_rate": 1.0,
            "response_rate": 1.0,
            "tokens": 2.0,
            "mean_output_tokens": 2.0,
            "mean_prompt_tokens": 3.0,
            "language_known": 0.0,
        },
        passed=False,
    )
    table = read_rows(tmp_path / "datasets" / "p" / "d1", CANDIDATE)
    assert table.schema.equals(ROWS)
    assert table.to_pylist() == [
        {
            "turn_id": "a",
            "sample": 0,
            "feedback_revision": 2,
            "policy": "p",
            "key_id": "k",
            "subject": "subject of a",
            "session_id": "session of a",
            "segment": "k",
            "dialect": "chat",
            "prompt_ids": [1, 2, 3],
            "output_ids": [7, 8],
            "logprobs": [-0.5, -1.25],
            "weight_versions": [{"version": "v1", "start": 0, "end": 2}],
            "sampling": '{"temperature":1.0}',
            "finish": "stop",
            "language": None,
            "reward": 0.75,
            "weight": 1.0,
            "started_at": 99.0,
            "finished_at": 100.0,
        }
    ]
    manifest = candidate(tmp_path, "d1")
    assert manifest.pairs == (("a", 0, 2),)
    assert manifest.versions == ("v1",)
    assert manifest.reward_digest == specification_digest(RewardSettings())
    assert set(manifest.lake_versions) == {"turns", "feedback", "erasures"}


def test_silence_never_becomes_a_row(tmp_path: Path) -> None:
    judged(tmp_path, "judged")
    land(tmp_path, "turns", turn("silent"), turn("only a comment"), turn("unauthorised"))
    land(tmp_path, "feedback", feedback("only a comment", "comment", text="hm"), feedback("unauthorised", key_id="x"))
    assert cut(tmp_path, "d1", now=50_000.0).counts["silent"] == 3
    assert [row["turn_id"] for row in rows(tmp_path, "d1")] == ["judged"]


def test_nothing_ready_makes_an_empty_candidate(tmp_path: Path) -> None:
    assert cut(tmp_path, "d1").rows == 0
    assert read_rows(tmp_path / "datasets" / "p" / "d1", CANDIDATE).schema.equals(ROWS)


def test_the_newest_turns_are_taken_and_stand_in_order(tmp_path: Path) -> None:
    judged(tmp_path, "c", "b", "a")
    cut(tmp_path, "d1", max_turns=2)
    assert [row["turn_id"] for row in rows(tmp_path, "d1")] == ["b", "a"]


def test_a_lake_freezes_to_the_same_bytes_whatever_landed_later(tmp_path: Path) -> None:
    judged(tmp_path, *[f"old {i}" for i in range(30)], at=20.0)
    judged(tmp_path, *[f"{i:03}" for i in range(60)])
    cut(tmp_path, "d1", max_turns=50)
    cut(tmp_path, "d1", max_turns=50, datasets="again")
    judged(tmp_path, "new", at=2000.0)
    cut(tmp_path, "d1", max_turns=50, datasets="later")
    first = tmp_path / "datasets" / "p" / "d1"
    for other in ("again", "later"):
        same = tmp_path / other / "p" / "d1"
        assert (first / "rows.parquet").read_bytes() == (same / "rows.parquet").read_bytes()
        assert candidate(tmp_path, "d1").baselines == candidate(tmp_path, "d1", other).baselines
    assert (first / CANDIDATE).read_bytes() == (tmp_path / "again" / "p" / "d1" / CANDIDATE).read_bytes()


def test_freezing_again_changes_nothing(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    before = cut(tmp_path, "d1")
    judged(tmp_path, "b")
    assert cut(tmp_path, "d1", now=2000.0) == before
    accept(tmp_path, "d1")
    assert cut(tmp_path, "d1", now=3000.0).passed
    assert [row["turn_id"] for row in rows(tmp_path, "d1")] == ["a"]


def test_a_folder_that_was_never_finished_is_frozen_anew(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    folder = tmp_path / "datasets" / "p" / "d1"
    folder.mkdir(parents=True)
    (folder / "rows.parquet").write_bytes(b"half of it")
    assert cut(tmp_path, "d1").rows == 1
    assert len(rows(tmp_path, "d1")) == 1


def test_a_turn_enters_one_accepted_dataset_even_when_it_is_revised(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    cut(tmp_path, "d1")
    accept(tmp_path, "d1")
    judged(tmp_path, "b")
    land(tmp_path, "feedback", feedback("a", "reject", received_at=500))
    cut(tmp_path, "d2")
    assert [row["turn_id"] for row in rows(tmp_path, "d2")] == ["b"]
    assert used_turns(tmp_path / "datasets", "p") == {("a", 0)}
    assert used_turns(tmp_path / "datasets", "p", since=1000.0) == {("a", 0)}
    assert used_turns(tmp_path / "datasets", "p", since=1000.1) == set()
    # What was trained on before still corrects the baseline, with its new reward.
    assert candidate(tmp_path, "d2").baselines == {"k": Baseline(mean=-0.25, count=1.0)}


def test_a_candidate_that_did_not_pass_uses_nothing_up(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    cut(tmp_path, "d1")
    cut(tmp_path, "d2")
    assert [row["turn_id"] for row in rows(tmp_path, "d2")] == ["a"]


def test_baselines_leave_the_datasets_own_rows_out(tmp_path: Path) -> None:
    judged(tmp_path, "old", "older", kind="reject")
    judged(tmp_path, "x", "y", at=200.0)
    cut(tmp_path, "d1", max_turns=2)
    assert [row["turn_id"] for row in rows(tmp_path, "d1")] == ["x", "y"]
    assert candidate(tmp_path, "d1").baselines == {"k": Baseline(mean=-0.25, count=2.0)}


def test_torn_arrays_are_named(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    land(tmp_path, "turns", turn("torn", finished_at=110.0) | {"logprobs": b"12345"})
    land(tmp_path, "feedback", feedback("torn", received_at=150))
    with pytest.raises(DatasetError, match=r"logprobs of these turns .* 4-byte values.*torn"):
        cut(tmp_path, "d1")
    assert not (tmp_path / "datasets" / "p" / "d1" / CANDIDATE).exists()


def test_the_newest_dataset_is_the_accepted_one_of_the_last_cut(tmp_path: Path) -> None:
    judged(tmp_path, "a")
    cut(tmp_path, "z")
    accept(tmp_path, "z")
    judged(tmp_path, "b")
    cut(tmp_path, "b", now=2000.0)
    accept(tmp_path, "b")
    judged(tmp_path, "c")
    cut(tmp_path, "a", now=3000.0)
    newest = newest_dataset(tmp_path / "datasets", "p")
    assert newest is not None
    assert newest.dataset_id == "b"
    assert newest_dataset(tmp_path / "datasets", "q") is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=SPAN))
def test_a_short_average_is_the_plain_mean(rewards: list[float]) -> None:
    baseline = moving_average(rewards)
    assert baseline.mean == pytest.approx(np.mean(rewards), abs=1e-12)
    assert baseline.count == len(rewards)


def test_a_long_average_follows_the_newest_and_caps_its_count() -> None:
    baseline = moving_average([0.0] * 500 + [1.0] * 500)
    assert baseline.mean == pytest.approx(1 - (1 - 1 / SPAN) ** 500)
    assert baseline.count == COUNT_CAP
    assert moving_average([]) == Baseline(mean=0.0, count=0.0)


def test_the_language_of_answers_is_in_the_rows_and_its_shares_in_the_statistics(tmp_path: Path) -> None:
    said = {
        "a": ("chat", '{"content": "Yes, that is right, and thank you for asking."}'),
        "b": ("messages", '{"content": [{"type": "text", "text": "Das ist ein kurzer Satz in deutscher Sprache."}]}'),
        "c": ("chat", '{"content": "I think that the train leaves at noon."}'),
        "d": ("chat", '{"content": "12 + 13 = 25"}'),
        "e": ("chat", ""),
    }
    land(tmp_path, "turns", *[turn(name, dialect=dialect, answer=text) for name, (dialect, text) in said.items()])
    land(tmp_path, "feedback", *[feedback(name) for name in said])
    statistics = cut(tmp_path, "d1").statistics
    assert [row["language"] for row in rows(tmp_path, "d1")] == ["en", "de", "en", None, None]
    assert {name: share for name, share in statistics.items() if name.startswith("language.")} == {
        "language.de": pytest.approx(1 / 3),
        "language.en": pytest.approx(2 / 3),
    }


def test_of_a_large_dataset_some_answers_tell_the_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.chosen.LOOKED_AT", 3)
    names = "abcdefgh"
    english = '{"content": "I think that the train leaves at noon."}'
    land(tmp_path, "turns", *[turn(name, finished_at=100.0 + i, answer=english) for i, name in enumerate(names)])
    land(tmp_path, "feedback", *[feedback(name, received_at=200) for name in names])
    cut(tmp_path, "d1")
    assert [row["turn_id"] for row in rows(tmp_path, "d1") if row["language"]] == ["a", "d", "g"]
