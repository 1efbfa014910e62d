"""What the guards measure of one answer: functions of (question, answer) to a number, most of them 0 or 1.

None needs a model. They see an answer's form, not its truth: each catches one way in which a policy is known to
please a wrong reward. `echo` knows English function words; in another language they count as new words,
and the guard sees less.
"""

import re
import unicodedata
from collections.abc import Callable

Measure = Callable[[str, str], float]

_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a able about all also am amount an and answer any are as at be been best but by can could depends did do does
        done down for from get gets good had has have he help her here his how i if important in into is it its just
        like long lot made make makes many may me might more most much must my need needs no not of on one only or our
        out over question recommend right she should so some such sure than that the their them then there these they
        thing things this those time to too try up us use used uses using very want was way ways we well were what
        when where which who whom whose why will with would yes you your yours
        """,
    )
)
_REFUSAL = re.compile(
    r"\b(i('m| am) (sorry|unable|not able)|i (can('|no)?t|cannot|won't) (help|assist|answer|provide|do that)"
    r"|as an ai\b|i('m| am) (just )?an ai\b)",
    re.IGNORECASE,
)


def words(text: str) -> list[str]:
    """Words of a text in lower case: runs of letters and digits in any script."""
    return re.findall(r"[^\W_]+", text.lower())


def stems(text: str) -> frozenset[str]:
    """Content words, cut to five letters so that forms of one word agree."""
    return frozenset(w[:5] for w in words(text) if w not in _FUNCTION_WORDS)


def length(question: str, answer: str) -> float:
    """Words between spaces."""
    return float(len(answer.split()))


def empty(question: str, answer: str) -> float:
    """1 without a single letter or digit."""
    return float(not words(answer))


def repetition(question: str, answer: str) -> float:
    """1 when of at least five words under 70 % are distinct in any window of 20, or one stands three times in a row."""
    said = words(answer)
    if any(a == b == c for a, b, c in zip(said, said[1:], said[2:], strict=False)):
        return 1.0
    windows = [said[i : i + 20] for i in range(0, max(1, len(said) - 19), 10)]
    return float(any(len(w) >= 5 and len(set(w)) < 0.7 * len(w) for w in windows))


def echo(question: str, answer: str) -> float:
    """1 when the answer has words, and no content word that the question lacks: it only repeats the question."""
    return float(bool(words(answer)) and not stems(answer) - stems(question))


def garble(question: str, answer: str) -> float:
    """1 with replacement or control characters, a word over 30 letters, or mostly neither letters nor digits."""
    solid = [c for c in answer if not c.isspace()]
    return float(
        any(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Co", "Cn") for c in solid)
        or any(len(w) > 30 and w.isascii() for w in words(answer))
        or (len(solid) >= 4 and sum(c.isalnum() for c in solid) < 0.5 * len(solid))
    )


def _scripts(text: str) -> list[str]:
    return [unicodedata.name(c, "UNKNOWN").split()[0] for c in text if c.isalpha()]


def script(question: str, answer: str) -> float:
    """Share of the answer's letters in a script (Latin, Cyrillic, CJK, …) that the question does not use."""
    known, said = set(_scripts(question)), _scripts(answer)
    return sum(s not in known for s in said) / len(said) if said and known else 0.0


def refusal(question: str, answer: str) -> float:
    """1 when it says that it cannot, will not, or is an AI."""
    return float(bool(_REFUSAL.search(answer)))


MEASURES: dict[str, Measure] = {
    "length": length,
    "empty": empty,
    "repetition": repetition,
    "echo": echo,
    "garble": garble,
    "script": script,
    "refusal": refusal,
}
"""Every measure by name; a guard of the same name bounds each (`length` from both sides)."""
