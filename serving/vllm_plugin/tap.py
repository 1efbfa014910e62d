"""The tap: records, inside the engine's own process, what each HTTP call made the engine sample.

`Tap` stands in for vLLM's engine client in its serving objects (decision 0001). Everything passes to the real
client; `generate` alone also writes down each output as it goes by. Which HTTP call a `generate` belongs to is in
`CURRENT`, set by `serving.vllm_plugin.middleware` for callers with the gateway's token; other calls pass untouched.

Always: the caller's own answer does not change, for logprobs are asked for on a copy of the parameters. A
client that hangs up does not cancel the engine's generator: the request is aborted by its id, so that the engine's
last output, with the version spans of what was sampled until then, still comes by.
"""

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.tap import TapCall, TapRecord, TapSample
from ingest.contracts.turn import Span

ABORT_AGAIN_SECONDS = 0.5
"""A request that was still being prepared when the abort came in, so that vLLM did not know it, is met by the next."""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "ignore_eos",
)

CONSTRAINTS = {
    "structured_outputs": "grammar",
    "logit_bias": "logit_bias",
    "bad_words": "bad_words",
    "allowed_token_ids": "allowed_token_ids",
    "min_tokens": "min_tokens",
    "thinking_token_budget": "thinking_token_budget",
    "trace_decode_token_ids": "forced_tokens",
    "watermarking": "watermark",
    "extra_args": "extra_args",
}
"""Sampling parameters that change the distribution in a way `sampling` does not tell, and the name of each."""

PROMPTS = {"multimodal": "media", "embeds": "prompt_embeds", "enc_dec": "encoder"}
"""vLLM's kinds of prompts that token ids alone do not give again, and the name of each."""


def sampling_of(params: Any) -> dict[str, float | int | bool | str | None]:
    """The sampling parameters of an engine request that a trainer must know."""
    return {name: getattr(params, name) for name in SAMPLING}


def constrained_by(prompt: Any, params: Any, lora_request: Any = None) -> str | None:
    """What made the distribution differ from the model's own, beyond `sampling_of` and the ids, joined by `+`."""
    names = [name for field, name in CONSTRAINTS.items() if getattr(params, field, None)]
    if lora_request is not None:
        names.append("adapter")
    kind = prompt.get("type", "token") if isinstance(prompt, dict) else "token"
    if kind != "token":
        names.append(PROMPTS.get(kind, kind))
    return "+".join(names) or None


class Sample:
    """One output of one engine request, as far as it has come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: tuple[Span, ...] = ()
        self.finish: str | None = None

    def add(self, output: Any, delta: bool) -> None:
        """Takes in a vLLM `CompletionOutput`: the new tokens where `delta`, else all tokens so far."""
        ids = list(output.token_ids)
        logprobs = [entry[token].logprob for token, entry in zip(ids, output.logprobs or (), strict=False)]
        if delta:
            self.ids += ids
            self.logprobs += logprobs
        else:
            self.ids, self.logprobs = ids, logprobs
        if output.finish_reason is not None:
            self.finish = output.finish_reason
            self.spans = tuple(Span(s.version, s.start, s.end) for s in output.weight_versions or () if s.end > s.start)

    def frozen(self) -> TapSample:
        return TapSample(
            index=self.index,
            output_ids=pack_ids(self.ids),
            logprobs=pack_logprobs(self.logprobs),
            weight_versions=self.spans,
            finish=self.finish,
        )


class Call:
    """One request to the engine."""

    def __init__(self, request_id: str, sampling: dict[str, Any], constrained: str | None) -> None:
        self.request_id = request_id
        self.sampling = sampling
        self.constrained = constrained
        self.prompt_ids: list[int] = []
        self.samples: dict[int, Sample] = {}
        self.running = True

    def add(self, output: Any, delta: bool) -> None:
        """Takes in a vLLM `RequestOutput`."""
        if output.prompt_token_ids is not None:
            self.prompt_ids = list(output.prompt_token_ids)
        for completion in output.outputs:
            self.samples.setdefault(completion.index, Sample(completion.index)).add(completion, delta)

    def frozen(self) -> TapCall:
        return TapCall(
            request_id=self.request_id,
            prompt_ids=pack_ids(self.prompt_ids),
            samples=tuple(self.samples[index].frozen() for index in sorted(self.samples)),
            sampling=self.sampling,
            constrained=self.constrained,
        )


class Recording:
    """What one HTTP call made the engine do, as far as it has come. `done` is set when its response has ended."""

    def __init__(self, engine_build: str) -> None:
        self.engine_build = engine_build
        self.calls: list[Call] = []
        self.first_token_at: float | None = None
        self.done = asyncio.Event()

    @property
    def sampled(self) -> bool:
        """Whether the engine made any token."""
        return any(sample.ids for call in self.calls for sample in call.samples.values())

    def frozen(self) -> TapRecord:
        return TapRecord(
            engine_build=self.engine_build,
            first_token_at=self.first_token_at,
            calls=tuple(call.frozen() for call in self.calls),
        )


CURRENT: ContextVar[Recording | None] = ContextVar("everloop_recording", default=None)


class Tap:
    """vLLM's engine client, with `generate` recording. `clock` gives Unix seconds."""

    def __init__(self, client: Any, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._logprobs_mode = str(client.model_config.logprobs_mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """vLLM's `generate`; the outputs are also added to the HTTP call's recording, if it has one."""
        recording = CURRENT.get()
        if recording is None:
            return self._client.generate(prompt, sampling_params, request_id, *args, **kwargs)
        params = sampling_params
        if params.logprobs is None:
            params = copy.copy(params)
            params.logprobs = 0
        call = Call(
            request_id,
            {**sampling_of(params), "logprobs_mode": self._logprobs_mode},
            constrained_by(prompt, params, kwargs.get("lora_request")),
        )
        recording.calls.append(call)
        return self._record(recording, call, params, self._client.generate(prompt, params, request_id, *args, **kwargs))

    async def _record(
        self, recording: Recording, call: Call, params: Any, outputs: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        delta = params.output_kind.name == "DELTA"
        try:
            async for output in outputs:
                call.add(output, delta)
                if recording.first_token_at is None and recording.sampled:
                    recording.first_token_at = self._clock()
                yield output
        finally:
            await outputs.aclose()
            call.running = False

    async def cut(self, recording: Recording) -> None:
        """Aborts what `recording` makes the engine do until its response has ended, and returns then."""
        while not recording.done.is_set():
            running = [call.request_id for call in recording.calls if call.running]
            if running:
                await self._client.abort(running)
            try:
                await asyncio.wait_for(recording.done.wait(), ABORT_AGAIN_SECONDS)
            except TimeoutError:
                continue
