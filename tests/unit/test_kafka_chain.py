"""The chain of `previous` sequences: what a reader of a topic gives on, drops, and waits for."""

from ingest.kafka_log import Chain
from ingest.kafka_topic import EventPlace, Watermark, event_headers, parse_headers, partition_of, watermark_headers


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


def test_sequences_that_were_refused_or_damaged_are_no_hole():
    assert takes(Chain(lambda s: 0), (0, 1), (1, 5), (5, 9)) == [True, True, True]


def test_the_first_event_after_a_removed_head_is_taken():
    assert takes(Chain(lambda s: 0), (40, 41), (41, 42), (50, 51), headless=True) == [True, True, None]


def test_headers_are_read_as_they_were_written():
    assert parse_headers(event_headers(EventPlace(7, 5))) == EventPlace(7, 5)
    assert parse_headers(watermark_headers(Watermark(1.5, True))) == Watermark(1.5, True)
    assert parse_headers([("foreign", b"1")]) is None
    assert parse_headers([("sequence", b"x"), ("previous", b"1")]) is None
    assert {partition_of(f"spool-{i}", 4) for i in range(100)} == {0, 1, 2, 3}
