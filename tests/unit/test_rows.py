"""Events as rows: every record becomes a row, a reject with a reason, or nothing because it was erased."""

import math

import msgspec
import pytest

from ingest.contracts.arrays import unpack_ids
from ingest.contracts.erasure import Erasure, erasure_digest
from ingest.contracts.events import Event, Record, encode_event
from ingest.contracts.turn import Span
from ingest.derived import Derived
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS
from ingest.rows import Erased, sort
from tests.log_events import accept, forget, turn


def records(*events: Event | bytes) -> list[Record]:
    return [
        Record("spool", sequence, event if isinstance(event, bytes) else encode_event(event))
        for sequence, event in enumerate(events, 1)
    ]


def test_every_field_of_every_event_has_a_column():
    for name, event in ((TURNS, turn("t")), (FEEDBACK, accept("f", "t")), (ERASURES, forget("s"))):
        derived = set(Derived._fields) if name == TURNS else set()
        columns = set(event.__struct_fields__) | {"spool_id", "sequence", "landed_at"} | derived
        assert columns == set(SCHEMAS[name].names)


def test_a_turn_keeps_its_bytes():
    spans = (Span("v1", 0, 2), Span("v2", 2, 6))
    [row] = sort(records(turn("t", tokens=6, weight_versions=spans)), Erased(), 9.0).tables[TURNS].to_pylist()
    assert list(unpack_ids(row["output_ids"])) == list(range(6))
    assert row["weight_versions"] == [
        {"version": "v1", "start": 0, "end": 2},
        {"version": "v2", "start": 2, "end": 6},
    ]
    assert (row["spool_id"], row["sequence"], row["landed_at"]) == ("spool", 1, 9.0)
    assert (row["sampling"], row["finish"], row["prefix_hashes"]) == ('{"temperature":1.0}', "stop", ["a", "b"])


def test_what_is_no_event_is_rejected_with_its_place_and_a_reason():
    broken = turn("broken", weight_versions=(Span("base", 0, 3),))
    too_large = turn("too large", sample=1 << 40)
    nobody = Erasure(erasure_id="e", target="subject", digest="", requested_at=1.0)
    batch = records(
        b"\xc1 not MessagePack",
        msgspec.msgpack.encode({"type": "unheard of"}),
        broken,
        turn("good"),
        too_large,
        nobody,
    )
    tables, erased, gone = sort(batch, Erased(), 0.0)
    assert (erased, gone) == (0, frozenset())
    assert tables[TURNS]["sequence"].to_pylist() == [4]
    rejects = {row["sequence"]: row for row in tables[REJECTS].to_pylist()}
    assert sorted(rejects) == [1, 2, 3, 5, 6]
    assert all(row["reason"] for row in rejects.values())
    assert [rejects[place]["payload"] for place in (1, 3)] == [batch[0].payload, batch[2].payload], "nothing is lost"
    assert erasure_digest("subject", "subject") in rejects[3]["about"]
    assert rejects[1]["about"] == []


@pytest.mark.parametrize("when", [math.nan, math.inf, -math.inf])
def test_what_has_no_time_is_rejected_for_a_file_with_it_hides_its_neighbours_from_the_join(when: float):
    fb = accept("f", "t")
    replace = msgspec.structs.replace
    odd = [turn("a", finished_at=when), turn("b", started_at=when), replace(fb, received_at=when)]
    tables = sort(records(turn("t"), *odd, replace(fb, occurred_at=when), fb), Erased(), 9.0).tables
    assert [tables[name].num_rows for name in (TURNS, FEEDBACK, REJECTS)] == [1, 1, 4]
    assert all("no times" in reason for reason in tables[REJECTS]["reason"].to_pylist())


def test_the_erased_do_not_land_not_even_from_before_their_erasure_in_the_same_batch():
    batch = records(
        turn("a", subject="gone"),
        accept("f", "a", subject="gone"),
        accept("g", "c", subject="another sender"),
        forget("gone"),
        turn("b", subject="stays"),
        turn("c", subject="x", session="gone session"),
    )
    session = Erasure(
        erasure_id="e", target="session", digest=erasure_digest("session", "gone session"), requested_at=1.0
    )
    tables, erased, gone = sort(batch, Erased([session]), 0.0)
    assert tables[TURNS]["turn_id"].to_pylist() == ["b"]
    assert (tables[FEEDBACK].num_rows, erased, gone) == (0, 4, {"a", "c"})
    assert tables[ERASURES]["target"].to_pylist() == ["subject", "turn", "turn"]


def test_what_cannot_be_read_is_no_reject_either_where_it_names_somebody_who_is_forgotten():
    unreadable = {"type": "turn", "subject": "gone", "turn_id": "t", "finish": "a word of tomorrow"}
    foreign = {"type": "feedback", "target": "session", "target_id": "gone session", "kind": "a word of tomorrow"}
    other = {"type": "feedback", "target": "turn", "target_id": "t2", "kind": "a word of tomorrow"}
    session = Erasure(
        erasure_id="e", target="session", digest=erasure_digest("session", "gone session"), requested_at=1.0
    )
    batch = records(forget("gone"), *(msgspec.msgpack.encode(event) for event in (unreadable, foreign, other)))
    tables, erased, _ = sort(batch, Erased([session]), 0.0)
    assert (tables[REJECTS]["sequence"].to_pylist(), erased) == ([4], 2)
