"""What one process takes on at a time."""

import pytest

from serving.gateway.errors import TooLarge, Unavailable
from serving.gateway.places import Places


def test_places_are_counted_while_they_are_held() -> None:
    places = Places(2, 100)
    with places.hold(), places.hold():
        assert places.requests == 2
        with pytest.raises(Unavailable), places.hold():
            pass
    assert places.requests == 0


def test_bodies_share_the_bytes_and_a_small_one_passes_beside_a_large_one() -> None:
    places = Places(10, 100)
    with places.hold() as large:
        large.reserve(90)
        with places.hold() as other:
            with pytest.raises(Unavailable) as refused:
                other.reserve(11)
            assert refused.value.retry_after
            other.reserve(10)
            assert places.bytes == 100
        assert places.bytes == 90
    assert places.bytes == 0


def test_a_body_without_a_length_counts_as_it_grows_and_a_declared_one_once() -> None:
    places = Places(10, 100)
    with places.hold() as first, places.hold() as second:
        for size in (10, 30, 30, 20):
            first.reserve(size)
        assert places.bytes == 30
        second.reserve(70)
        with pytest.raises(Unavailable):
            first.reserve(31)
    assert places.bytes == 0


def test_a_body_above_all_that_there_is_is_too_large_and_need_not_come_again() -> None:
    places = Places(10, 100)
    with places.hold() as place, pytest.raises(TooLarge):
        place.reserve(101)
