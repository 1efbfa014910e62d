"""Turns as gateways record them: 1,000 prompt and 256 output tokens, with their texts, 12 kB each.

Ids and words are drawn with frequencies that fall as in text, so that they compress as text does; logprobs have all
their bits. Only `DISTINCT` turns differ in more than their ids: they stand 24 MB apart, further than any compressor
looks back.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice

import msgspec
import numpy as np

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.turn import Finish, Span, Turn

POLICY = "policy"
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 256
TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS
RAW_BYTES = 4 * TOKENS + 4 * OUTPUT_TOKENS
"""What the ids of a turn take as int32, and its logprobs as float32."""
DISTINCT = 2000

_VOCABULARY, _WORDS = 49_152, 8_000
_SYLLABLES = ("ta", "re", "mi", "lo", "ne", "su", "ki", "va", "do", "er", "an", "is", "ol", "ut", "em")
_WORDS_A_TOKEN = 0.75
_STARTED = 1_800_000_000.0


def generate(number: int) -> Iterator[Turn]:
    """`number` turns; the same ones each time. What differs is made before the first one is given."""
    made = [_turn(np.random.default_rng(place)) for place in range(min(number, DISTINCT))]
    return (
        msgspec.structs.replace(
            made[at % len(made)],
            turn_id=f"chatcmpl-{at:032x}",
            session_id=f"{at // 4:032x}",
            started_at=_STARTED + at,
            finished_at=_STARTED + at + 2.0,
        )
        for at in range(number)
    )


def session(seed: int, turns: int, tokens: int) -> Iterator[Turn]:
    """An agent's session: each prompt is the one before, its answer, and what a tool said; the last one has `tokens`
    tokens."""
    rng = np.random.default_rng(seed)
    messages: list[dict[str, str]] = []
    ids = np.empty(0, np.int32)
    for at in range(turns):
        told = tokens * (at + 1) // turns - len(ids)
        ids = np.concatenate([ids, _falling(rng, told, _VOCABULARY)])
        said = " ".join(_text(rng, int(told * _WORDS_A_TOKEN)))
        messages.append({"role": "tool" if at else "user", "content": said})
        turn = _recorded(rng, ids, messages)
        yield msgspec.structs.replace(
            turn,
            turn_id=f"chatcmpl-{seed:016x}{at:016x}",
            session_id=f"{seed:032x}",
            subject=f"{seed:032x}",
            started_at=_STARTED + 30 * at,
            finished_at=_STARTED + 30 * at + 2.0,
        )
        ids = np.concatenate([ids, np.frombuffer(turn.output_ids, np.int32)])
        messages.append(json.loads(turn.answer))


def _turn(rng: np.random.Generator) -> Turn:
    words = _text(rng, int(PROMPT_TOKENS * _WORDS_A_TOKEN))
    system, first, answered, asked = (" ".join(islice(words, size)) for size in (60, 240, 200, 250))
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": first},
        {"role": "assistant", "content": answered},
        {"role": "user", "content": asked},
    ]
    return _recorded(rng, _falling(rng, PROMPT_TOKENS, _VOCABULARY), messages)


def _recorded(rng: np.random.Generator, prompt: np.ndarray, messages: list[dict[str, str]]) -> Turn:
    """A turn of this prompt, and an answer."""
    request = {"model": POLICY, "messages": messages, "temperature": 1.0, "max_tokens": 512, "stream": True}
    answer = {"role": "assistant", "content": " ".join(_text(rng, int(OUTPUT_TOKENS * _WORDS_A_TOKEN)))}
    return Turn(
        turn_id="",
        policy=POLICY,
        dialect="chat",
        key_id="key",
        subject=rng.bytes(16).hex(),
        session_id="",
        prefix_hashes=tuple(rng.bytes(16).hex() for _ in range(5)),
        prompt_ids=pack_ids(prompt),
        output_ids=pack_ids(_falling(rng, OUTPUT_TOKENS, _VOCABULARY)),
        logprobs=pack_logprobs(-rng.exponential(0.7, OUTPUT_TOKENS)),
        weight_versions=(Span("v1", 0, OUTPUT_TOKENS),),
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 512},
        finish=Finish.STOP,
        engine_id="engine",
        engine_build="0.32.0",
        started_at=_STARTED,
        finished_at=_STARTED,
        request=json.dumps(request, separators=(",", ":")),
        answer=json.dumps(answer, separators=(",", ":")),
        trainable=True,
    )


def _falling(rng: np.random.Generator, number: int, below: int) -> np.ndarray:
    """Numbers whose frequency falls with their size, about as 1/n."""
    return np.minimum(np.exp(rng.uniform(0, np.log(below), number)) - 1, below - 1).astype(np.int32)


def _text(rng: np.random.Generator, words: int) -> Iterator[str]:
    return (_word(number) for number in _falling(rng, words, _WORDS).tolist())


@cache
def _word(number: int) -> str:
    """One of `_WORDS`: rare ones are long."""
    word = ""
    while True:
        number, place = divmod(number, len(_SYLLABLES))
        word += _SYLLABLES[place]
        if not number:
            return word
