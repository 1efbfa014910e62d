"""What a reader of a topic gives on, drops, and waits for: the chain of `previous` sequences, and events in parts."""

from types import SimpleNamespace

import pytest

from ingest.kafka_chain import Chain, Parts
from ingest.kafka_topic import (
    EventPlace,
    Watermark,
    event_headers,
    parse_headers,
    partition_of,
    split,
    watermark_headers,
)


def takes(chain: Chain, *places: tuple[int, int], headless: bool = False) -> list[bool | None]:
    return [chain.take("s", EventPlace(sequence, previous), headless) for previous, sequence in places]


def test_each_event_once_whatever_was_sent_again():
    assert takes(Chain(lambda s: 0), (0, 1), (1, 2), (0, 1), (1, 2), (2, 3)) == [True, True, False, False, True]


def test_what_the_lake_has_is_dropped():
    assert takes(Chain(lambda s: 2), (0, 1), (1, 2), (2, 3)) == [False, False, True]


def test_an_event_before_its_predecessor_waits_until_it_is_sent_again():
    chain = Chain(lambda s: 0)
    assert takes(chain, (0, 1), (2, 3)) == [True, None]
    assert chain.waiting == {"s"}
    assert takes(chain, (1, 2), (2, 3)) == [True, True]
    assert chain.waiting == set()


def test_sequences_that_were_damaged_are_no_hole():
    assert takes(Chain(lambda s: 0), (0, 1), (1, 5), (5, 9)) == [True, True, True]


def test_the_first_event_after_a_removed_head_is_taken():
    assert takes(Chain(lambda s: 0), (40, 41), (41, 42), (50, 51), headless=True) == [True, True, None]


def test_headers_are_read_as_they_were_written():
    assert parse_headers(event_headers(EventPlace(7, 5))) == EventPlace(7, 5)
    assert [name for name, _ in event_headers(EventPlace(7, 5))] == ["sequence", "previous"]
    assert parse_headers(event_headers(EventPlace(7, 5, 2, 3))) == EventPlace(7, 5, 2, 3)
    assert parse_headers(watermark_headers(Watermark(1.5, True))) == Watermark(1.5, True)
    assert parse_headers([("foreign", b"1")]) is None
    assert parse_headers([("sequence", b"x"), ("previous", b"1")]) is None
    assert {partition_of(f"spool-{i}", 4) for i in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [1, 9, 10, 11, 29, 30, 31, 1000])
def test_parts_are_within_the_limit_and_join_to_the_whole(size: int):
    payload = bytes(i % 251 for i in range(size))
    parts = split(payload, 10)
    assert b"".join(parts) == payload
    assert max(map(len, parts)) <= 10
    assert len(parts) == -(-size // 10)
    assert split(payload, -(-size // len(parts))) == parts, "another limit, the same number: the same parts"


def joins(parts: Parts, *sent: tuple[int, int, int]) -> list[tuple[bytes, int] | None]:
    """(sequence, part, parts) at the offsets 0, 1, …; the value names all three."""
    return [
        parts.join(
            "s",
            EventPlace(sequence, sequence - 1, part, count),
            SimpleNamespace(partition=0, offset=offset, value=b"%d.%d/%d " % (sequence, part, count)),
        )
        for offset, (sequence, part, count) in enumerate(sent)
    ]


def test_an_event_in_parts_is_given_with_its_last_one():
    parts = Parts()
    assert joins(parts, (1, 0, 3), (1, 1, 3), (1, 2, 3)) == [None, None, (b"1.0/3 1.1/3 1.2/3 ", 0)]
    assert parts.needed(0) == []


def test_parts_sent_twice_and_by_two_forwarders_at_once_are_one_event():
    assert joins(Parts(), (1, 0, 2), (1, 0, 2), (1, 1, 2))[-1] == (b"1.0/2 1.1/2 ", 0)
    assert joins(Parts(), (1, 0, 3), (1, 1, 3), (1, 0, 3), (1, 2, 3))[-1] == (b"1.0/3 1.1/3 1.2/3 ", 0)


def test_parts_of_another_size_are_not_mixed_and_what_is_open_says_where_it_began():
    parts = Parts()
    whole = joins(parts, (1, 0, 2), (1, 0, 3), (1, 1, 3), (2, 0, 2), (1, 2, 3))
    assert whole == [None, None, None, None, (b"1.0/3 1.1/3 1.2/3 ", 1)]
    assert sorted(parts.needed(0)) == [0, 3]
    assert parts.needed(1) == []
    parts.forget("s", 1)
    assert parts.needed(0) == [3]
