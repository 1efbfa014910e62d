"""Watermarks of a topic: facts that landers write beside each other, and of which the newest holds."""

import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from ingest import watermarks
from ingest.config import LogSettings
from ingest.kafka_log import KafkaLog
from ingest.lake import WATERMARKS, read
from ingest.watermarks import Mark, Marks, fold

pytestmark = pytest.mark.integration

DAY = 86400.0


def watermark(lake: Path, *partitions: int) -> float:
    log = KafkaLog(LogSettings(kind="kafka", topic="t", lost_after_seconds=3600.0), lake)
    log._partitions = set(partitions)
    return log.watermark()


def test_the_earliest_of_partitions_and_living_spools_holds(tmp_path: Path):
    marks, others = Marks(tmp_path, "t"), Marks(tmp_path, "t")
    marks.write({0: Mark(5000.0, False)}, {"a": Mark(4900.0, False)}, 0.0)
    assert watermark(tmp_path, 0) == 4900
    assert watermark(tmp_path, 0, 1) == 0, "nobody has read partition 1 yet"
    others.write({1: Mark(4800.0, False)}, {"b": Mark(4700.0, False), "long lost": Mark(1000.0, False)}, 0.0)
    assert watermark(tmp_path, 0, 1) == 4700
    others.write({}, {"b": Mark(4750.0, True)}, 0.0)
    assert watermark(tmp_path, 0, 1) == 4800, "a closed spool holds nothing back"


def test_a_gateway_whose_clock_is_days_ahead_declares_no_other_spool_lost(tmp_path: Path):
    now = time.time()
    spools = {"a": Mark(now - 100, False), "ahead": Mark(now + 10 * DAY, False)}
    Marks(tmp_path, "t").write({0: Mark(now, False)}, spools, now)
    assert watermark(tmp_path, 0) == now - 100


def test_an_older_fact_that_is_written_later_changes_nothing(tmp_path: Path):
    marks = Marks(tmp_path, "t")
    marks.write({0: Mark(9.0, False)}, {"a": Mark(8.0, True)}, 0.0)
    marks.write({0: Mark(5.0, False)}, {"a": Mark(4.0, False)}, 1.0)
    assert marks.read() == ({0: Mark(9.0, False)}, {"a": Mark(8.0, True)})
    assert Marks(tmp_path, "another topic").read() == ({}, {})


def test_many_rows_become_one_a_fact_and_closed_spools_go_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    marks = Marks(tmp_path, "t")
    for i in range(5):
        marks.write({0: Mark(i + 1.0, False)}, {"a": Mark(i + 0.5, i == 4), "b": Mark(40 * DAY + i, False)}, 0.0)
    fold(tmp_path)
    assert read(tmp_path, WATERMARKS).count_rows() == 15, "few rows are left as they are"
    monkeypatch.setattr(watermarks, "_FOLD_ABOVE", 10)
    fold(tmp_path)
    assert marks.read() == ({0: Mark(5.0, False)}, {"b": Mark(40 * DAY + 4, False)})
    assert read(tmp_path, WATERMARKS).count_rows(filter=pc.field("topic") == "t") == 2
