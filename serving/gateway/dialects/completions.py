"""`/v1/completions`: OpenAI's older format, a prompt (or several) to go on from."""

from collections.abc import Collection

import msgspec

from serving.gateway.dialects.base import SAMPLING, Dialect, Reply, encode_text
from serving.gateway.dialects.event_data import decode_events
from serving.gateway.errors import BadRequest


class _Choice(msgspec.Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []


_chunks = msgspec.json.Decoder(list[_Completion])
_completion = msgspec.json.Decoder(_Completion)


class Completions(Dialect):
    """Text completions. Sample `i * n + j` is the j-th of prompt i, as the engine numbers its choices."""

    name = "completions"
    path = "/v1/completions"
    id_prefix = engine_prefix = "cmpl-"
    sent = SAMPLING | {"prompt", "suffix", "logprobs", "stream", "stream_options"}
    accepted = frozenset({"model", "user", "metadata", "best_of", "store", "safety_identifier", "prompt_cache_key"})

    def prompts(self, body: dict) -> int:
        prompt = body.get("prompt")
        return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1

    def heard(self, body: dict, media_domains: Collection[str]) -> list[dict]:
        prompt = body.get("prompt")
        if not _is_prompt(prompt):
            raise BadRequest(
                "`prompt` must be a string, a list of token ids, or a list of either kind.", param="prompt"
            )
        # As one text: the chain would look at each of a million token ids.
        return [{"role": "user", "content": prompt if isinstance(prompt, str) else encode_text(prompt)}]

    def replies(self, body: bytes) -> dict[int, Reply]:
        return {c.index: _reply(c.text, c.finish_reason) for c in _completion.decode(body).choices}

    def stream_replies(self, events: bytes) -> dict[int, Reply]:
        text: dict[int, list[str]] = {}
        finish: dict[int, str | None] = {}
        for chunk in decode_events(events, _chunks):
            for choice in chunk.choices:
                text.setdefault(choice.index, []).append(choice.text)
                finish[choice.index] = choice.finish_reason or finish.get(choice.index)
        return {index: _reply("".join(pieces), finish.get(index)) for index, pieces in text.items()}


def _reply(text: str, finish: str | None) -> Reply:
    return Reply({"role": "assistant", "content": text}, finish)


def _is_prompt(prompt: object) -> bool:
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    return _all_ids(prompt) or all(isinstance(p, str) for p in prompt) or all(_all_ids(p) for p in prompt)


def _all_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and set(map(type, prompt)) == {int} and min(prompt) >= 0
