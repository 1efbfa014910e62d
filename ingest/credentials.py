"""Credentials that users sent, kept out of the lake: `[lake] redact_credentials`, off by default.

Found by detect-secrets' detectors of tokens with a form of their own (AWS, GitHub, Slack, private keys, passwords in
URLs, …); those that guess by entropy or by words such as "password" are left out, for prose and code are full of both.
What was found goes as in decision 10: a turn lands without texts and arrays and is not trainable, feedback without its
text. The gateway's own redaction comes before the log; this one is for what it was not told about, and for the lake
only: the log has the event until its retention, and what could not be read is kept as it came (`rejects`).

The detectors' expressions are quadratic and worse: 300 kB of `sk-sk-sk-` take seven minutes. So they are shown pieces,
which overlap by the longest token that is sure to be found, and an event that still takes `SECONDS` fails closed.
"""

import re
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ingest.contracts.events import Event
from ingest.contracts.feedback import Feedback
from ingest.contracts.turn import Turn
from ingest.formats import as_json

if TYPE_CHECKING:
    from detect_secrets.plugins.base import BasePlugin

SECONDS = 5.0
_PIECE, _OVERLAP = 1024, 384

REASON = "credentials"
"""Why such a turn is not trainable."""

_BY_GUESS = {"Base64HighEntropyString", "HexHighEntropyString", "KeywordDetector", "IPPublicDetector"}
_BY_GUESS |= {
    "IbmCloudIamDetector",
    "IbmCosHmacDetector",
    "SoftlayerDetector",
    "CloudantDetector",
    "ArtifactoryDetector",
}
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]+\.eyJ[\w-]+")
"""In place of the detector of JSON Web Tokens, which takes a minute for 270 kB of `eyJeyJeyJ`."""


def without_credentials(event: Event) -> Event:
    """The event as it may land."""
    if isinstance(event, Turn) and _found(_texts(event.request), _texts(event.answer)):
        return msgspec.structs.replace(
            event,
            request="",
            answer="",
            prompt_ids=b"",
            output_ids=b"",
            logprobs=b"",
            weight_versions=(),
            trainable=False,
            untrainable_reason=event.untrainable_reason if event.untrainable_reason == "opted out" else REASON,
        )
    if isinstance(event, Feedback) and event.text is not None and _found((event.text,)):
        return msgspec.structs.replace(event, text=None)
    return event


def _found(*texts: Iterable[str]) -> bool:
    deadline = time.monotonic() + SECONDS
    return any(_is_found(text, deadline) for part in texts for text in part)


def _is_found(text: str, deadline: float) -> bool:
    if _JWT.search(text):
        return True
    for start in range(0, max(1, len(text) - _OVERLAP), _PIECE - _OVERLAP):
        piece = text[start : start + _PIECE]
        if time.monotonic() > deadline or any(True for d in _detectors() for _ in d.analyze_string(piece)):
            return True
    return False


def _texts(document: str) -> Iterator[str]:
    """Every string of a JSON document, and of JSON in it; the document itself where it is none."""
    left = [as_json(document) if document else ""]
    if left == [None]:
        left = [document]
    while left:
        match left.pop():
            case str() as text:
                inner = as_json(text) if text[:1] in "[{" else None
                if isinstance(inner, dict | list):
                    left.append(inner)
                else:
                    yield text
            case dict() as parts:
                left += [*parts, *parts.values()]
            case list() as parts:
                left += parts


@lru_cache(maxsize=1)
def _detectors() -> "tuple[BasePlugin, ...]":
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    kinds: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    return tuple(kind() for kind in kinds if kind.__name__ not in {*_BY_GUESS, "JwtTokenDetector"})
