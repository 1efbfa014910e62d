"""The default classifier of a dissatisfied follow-up: a list of English phrases that complain about an answer.

It is a weak one, on purpose: it knows English only, it misses most complaints, and it takes some quotations for
complaints. Use it to see whether the signal is worth having; before it is worth a reward, name a classifier of your own
(`classifier = "module:function"`) and compare its guesses with what users say outright (the attribution report has, by
rule, how many of the turns with a signal were answered, and how many accepted).

A classifier is a function of the user's words to a probability, or to true or false. It must be deterministic.
"""

import re

LOOKED_AT = 400
"""Characters: complaints come first; what follows is often a quotation, or a new task."""

_NOT = r"(?:n't|n’t| not)"
_IS = r"(?:'s|’s| is| was)"
_PHRASES = re.compile(
    "|".join(
        (
            rf"\b(?:that|this|it){_IS}(?: still| just| completely| totally)? (?:wrong|incorrect|nonsense|useless)\b",
            rf"\b(?:that|this|it){_IS}{_NOT}(?: at all)? (?:right|correct|what i|helpful|true|working)\b",
            rf"\b(?:that|this|it)(?: still)? (?:does|did){_NOT} (?:work|help|answer|make sense|compile|run)\b",
            r"\bstill (?:wrong|incorrect|broken|failing|not (?:right|working|correct))\b",
            r"\bnot what i (?:asked|meant|wanted|said|need)",
            r"\byou(?:'re| are|’re) (?:wrong|mistaken|not (?:listening|answering|helping|understanding))\b",
            r"\byou (?:misunderstood|ignored|forgot|missed|made (?:a mistake|an error))\b",
            rf"\byou (?:did|have|do){_NOT} (?:answer|understand|read|listen|do what|follow)",
            r"\bi (?:already (?:said|told you|asked)|said|asked (?:you )?for)\b.{0,80}\bnot\b",
            r"\A\s*(?:no|nope|wrong|incorrect)[,.!]+ ?(?:that|this|it|you|i (?:said|meant|asked|wanted)|try|not)\b",
            r"\A\s*(?:wrong|incorrect|nope)\s*[.!]*\s*\Z",
            r"\A\s*(?:please,? )?(?:try|do it|do that) again\b",
        )
    ),
    re.IGNORECASE,
)

_TELLING = (
    *("wrong", "incorrect", "nonsense", "useless", "n't", "n’t", "not", "still", "mistake", "misunderstood", "ignored"),
    *("forgot", "missed", "an error", "try again", "do it again", "do that again"),
)
"""Every phrase has one of these, but the one that begins with no: most messages have none, and a look for them costs a
tenth of the expression's."""


def complains(text: str) -> bool:
    """Whether the text's beginning has one of the phrases."""
    begins = text[:LOOKED_AT].lower()
    if not begins.lstrip().startswith("no") and not any(word in begins for word in _TELLING):
        return False
    return _PHRASES.search(begins) is not None
