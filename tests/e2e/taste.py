"""What people like in this test: answers with more a than o. A task of one's own, as a user of everloop writes it."""


def likes(answer: str) -> bool:
    """Whether a person accepts the answer."""
    return answer.count("a") > answer.count("o")


def score(question: dict, answer: str, finish: str) -> float:
    """The evaluation's target."""
    return float(likes(answer))
