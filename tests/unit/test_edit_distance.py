"""The quick edit distance against the obvious one."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.edit_distance import edit_distance

TEXTS = st.text(st.sampled_from("ab😀"), max_size=12)


def slowly(one: str, other: str) -> int:
    above = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        line = [row]
        for column, wanted in enumerate(other, 1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (character != wanted)))
        above = line
    return above[-1]


@given(TEXTS, TEXTS)
def test_it_is_the_obvious_one(one: str, other: str) -> None:
    assert edit_distance(one, other) == slowly(one, other)


def test_long_texts_are_more_than_one_word_of_bits() -> None:
    one, other = "abcde" * 60, "abxde" * 59 + "y"
    assert edit_distance(one, other) == slowly(one, other)
