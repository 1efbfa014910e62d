"""The demo's truth: how likely a person is to accept an answer.

People here want a short, finished, clean answer on the topic that adds something to the question. They never accept
for certain and never refuse for certain: between 0.02 and 0.87. The rule about new words is what keeps the measure
honest: without it a policy learned to give the question back as a statement ("The tallest animal is the tallest
animal."), which pleases every other rule.
"""

import math
import re

from pipelines.simulate.words import new_words

FLOOR = 0.02
"""Accepted by accident: what an empty answer, a fragment or a parrot gets."""
_RANGE = 0.93
_MARKUP = frozenset("<>{}[]|_*#\\")


def acceptance(question: dict, answer: str, finish: str) -> float:
    """Probability in [0.02, 0.88) that a person who asked `question` accepts `answer`.

    `question` is a line of a question file: its text in `question`, its topic (a regular expression, matched against
    the answer in lower case) in `meta.topic`. `finish` is the API's finish reason: `stop`, `length`, ….
    """
    asked, topic = question["question"], question["meta"]["topic"]
    text = answer.strip()
    words = text.split()
    if len(words) < 3 or sum(c.isalpha() for c in text) < 8:
        return FLOOR
    added = new_words(asked, text)
    if added == 0:
        return FLOOR
    score = -3.0 + 2.0 * _length(len(words))
    score += 1.6 * (finish == "stop" and text[-1] in ".!")
    score += 1.8 * bool(re.search(topic, text.lower()))
    score -= 1.5 * _garbled(text, words)
    score -= 1.0 * (added == 1)
    return FLOOR + _RANGE / (1 + math.exp(-score))


def _length(words: int) -> float:
    """1 from 5 to 11 words, falling linearly to 0 at 2 and at 25."""
    return max(0.0, min(1.0, (words - 2) / 3, (25 - words) / 14))


def _garbled(text: str, words: list[str]) -> bool:
    """Line breaks, markup, foreign characters, endless words, or the same words over and over."""
    return (
        "\n" in text
        or not _MARKUP.isdisjoint(text)
        or sum(not c.isascii() for c in text) > 3
        or any(len(word) > 18 for word in words)
        or len({word.lower() for word in words}) < 0.7 * len(words)
    )
