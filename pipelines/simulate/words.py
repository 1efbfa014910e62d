"""Which words of a text carry content: what is left without the words that any answer may contain."""

import re

# Words with which one can fill a sentence without saying anything about the question.
_EMPTY = frozenset(
    re.findall(
        r"\w+",
        """
    a an the this that these those it its i me my mine we us our you your yours he him his she her hers they them
    their and or but nor if then than so as because while of in on at to from by for with without about into out off
    up down over under again is are was were be been being am do does did done doing have has had having can could
    shall should will would may might must not no yes what which who whom whose when where why how there here also
    just very more most much many some any all each every one ones other such only even still ever never always
    often well good best better right sure need needs want wants like likes try tries use uses used using make makes
    made get gets got give gives take takes way ways thing things lot able amount help helps depend depends important
    recommend recommended long time answer question
    """,
    )
)
_STEM = 5


def stems(text: str) -> frozenset[str]:
    """The content words of `text`, lower case, cut to their first five letters so that plurals and tenses meet."""
    return frozenset(word[:_STEM] for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _EMPTY)


def new_words(question: str, answer: str) -> int:
    """How many content words `answer` has that `question` lacks; 0 is a parrot."""
    return len(stems(answer) - stems(question))


def likeness(one: str, other: str) -> float:
    """Share of content words that two texts have in common, 0 to 1 (Jaccard)."""
    a, b = stems(one), stems(other)
    return len(a & b) / len(a | b) if a | b else 1.0
