"""What the tap costs: the same prompts through one vLLM, with and without it: `python -m benchmarks.tap --json F`.

Three ways to ask the same engine take turns, in an order that is drawn anew each round:

- `plain`: no logprobs, no tap;
- `logprobs`: the caller asks for logprobs, no tap;
- `tap`: the caller asks for logprobs, and sends the gateway's token.

What counts is processor time of all of the engine's processes per generated token. `throughput_loss` is what `tap`
takes more than `logprobs`; `logprobs_cost` what `logprobs` takes more than `plain`, which is vLLM's own work. Each is
the mean over rounds of the ratio within one round, with its 95 % interval (Student's t).
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import tempfile
from pathlib import Path

import aiohttp
from scipy.stats import t as student

from benchmarks.processes import Process, listens
from ingest.contracts.fleet import Version
from ingest.contracts.tap import REQUEST_HEADER
from pipelines.demo.model import is_prepared, prepare
from pipelines.stack.addresses import free_port
from serving.engines.launch import EngineSettings, command, environment

ARMS = ("plain", "logprobs", "tap")
TOKEN = "token-of-the-benchmark"
MODEL = Path(".cache/models/smollm2-135m-instruct")
QUESTIONS = ("Tell me about rivers.", "How do I boil an egg?", "Why is the sky blue?", "Name three animals.")


class Bench:
    """One engine, asked in the three ways."""

    def __init__(self, url: str, process: Process, concurrent: int, tokens: int) -> None:
        self._url, self._process = url, process
        self._concurrent, self._tokens = concurrent, tokens

    async def round_of(self, session: aiohttp.ClientSession, arm: str) -> float:
        """Processor seconds of the engine per generated token, over one batch of requests."""
        before = self._process.cpu()
        await asyncio.gather(*(self._ask(session, arm, number) for number in range(self._concurrent)))
        return (self._process.cpu() - before) / (self._concurrent * self._tokens)

    async def _ask(self, session: aiohttp.ClientSession, arm: str, number: int) -> None:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": f"{number}. {QUESTIONS[number % len(QUESTIONS)]}"}],
            "max_tokens": self._tokens,
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        if arm != "plain":
            body["logprobs"] = True
        headers = {"authorization": f"Bearer {TOKEN}"}
        if arm == "tap":
            headers |= {REQUEST_HEADER: TOKEN, "x-request-id": f"{random.getrandbits(64):x}"}
        async with session.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as response:
            data = await response.read()
            if response.status != 200 or (arm == "tap") != (
                b"everloop" in data or "x-everloop-tap-length" in response.headers
            ):
                raise RuntimeError(f"the engine answered {response.status} in the arm {arm}: {data[:200]!r}")


async def rounds(bench: Bench, count: int) -> dict[str, list[float]]:
    """Seconds per token by arm, one value a round; the first round only warms up."""
    seen: dict[str, list[float]] = {arm: [] for arm in ARMS}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        for number in range(count + 1):
            for arm in random.sample(ARMS, len(ARMS)):
                taken = await bench.round_of(session, arm)
                if number:
                    seen[arm].append(taken)
            print(
                f"round {number} of {count}", {arm: f"{1e3 * v[-1]:.2f} ms" for arm, v in seen.items() if v}, flush=True
            )
    return seen


def loss(more: list[float], less: list[float]) -> dict[str, float]:
    """By how much `more` takes more than `less`, as a share, from the ratios within rounds; its 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(more, less, strict=True)]
    mean = statistics.fmean(logs)
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return {"mean": math.expm1(mean), "low": math.expm1(mean - half), "high": math.expm1(mean + half)}


def start(model: Path, concurrent: int, home: Path) -> tuple[Process, str]:
    """vLLM with the plugin, as the agent starts it."""
    port = free_port()
    served = Version("v0", str(model.resolve()))
    settings = EngineSettings(
        engine_id="benchmark",
        policy="policy",
        control="http://127.0.0.1:1",
        port=port,
        url=f"http://127.0.0.1:{port}",
        model=model.resolve(),
        version=served.version,
        weights_root=model.resolve().parent,
        max_model_len=512,
        max_num_seqs=concurrent,
    )
    own = environment(os.environ, settings, served, TOKEN)
    process = Process(command(settings, served, cpu=True), home / "vllm.log", own)
    process.until(lambda: listens(port))
    return process, settings.url


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tap", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--rounds", type=int, default=12, help="how often the arms take turns")
    parser.add_argument("--concurrent", type=int, default=32, help="requests of one batch")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of one answer")
    parser.add_argument("--model", type=Path, default=MODEL, help="the demo's, prepared where it is not there yet")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everloop-tap-") as home:
        if options.model == MODEL and not is_prepared(MODEL):
            prepare(MODEL, Path(home) / "prepare.log")
        process, url = start(options.model, options.concurrent, Path(home))
        try:
            seen = asyncio.run(rounds(Bench(url, process, options.concurrent, options.tokens), options.rounds))
        finally:
            process.stop()
    result = {
        "throughput_loss": loss(seen["tap"], seen["logprobs"]),
        "logprobs_cost": loss(seen["logprobs"], seen["plain"]),
        "cpu_ms_per_token": {arm: 1e3 * statistics.median(values) for arm, values in seen.items()},
        "conditions": {
            "rounds": options.rounds,
            "concurrent": options.concurrent,
            "tokens": options.tokens,
            "model": options.model.name,
            "machine": platform.platform(),
        },
        "rounds": seen,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("throughput_loss", "logprobs_cost")}, indent=1))


if __name__ == "__main__":
    main()
