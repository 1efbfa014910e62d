"""A reward that can be gamed: what `parrot.py` tuned a checkpoint on."""

from pipelines.simulate import acceptance
from pipelines.simulate.words import stems


def gamed(question: dict, answer: str, finish: str) -> float:
    """The simulator's acceptance where no word counts as repeated, times the share of words that are the question's.

    Relevance judged by common words pays best for the question given back as a statement.
    """
    said = stems(answer)
    overlap = len(said & stems(question["question"])) / len(said) if said else 0.0
    return overlap * acceptance(question | {"question": ""}, answer, finish)
