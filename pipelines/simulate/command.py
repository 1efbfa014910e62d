"""`everloop simulate`: simulated users talk to the stack of a configuration, for as long as one likes.

    everloop simulate --config demo/everloop.toml --questions demo/questions/traffic.jsonl --turns 200 --rate 4

Without `--rate` they talk as fast as `--concurrency` allows; with `--url`, to any gateway. Each exchange is a line of
`simulate/journal.jsonl` in the home folder. The exit code is 1 where a request failed.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import PipelineError
from pipelines.simulate.questions import load_questions
from pipelines.simulate.traffic import Crowd, Exchange
from pipelines.simulate.users import everyday_users

KEY_VARIABLE = "EVERLOOP_API_KEY"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses `arguments` (default: the process's) and runs; raises `SystemExit`."""
    options = _parser().parse_args(arguments)
    try:
        raise SystemExit(asyncio.run(simulate(options)))
    except PipelineError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def simulate(options: argparse.Namespace) -> int:
    """Runs the simulation; the exit code. Prints a line now and then, and the tally at its end."""
    from openai import AsyncOpenAI

    url, key, policy, journal = _target(options)
    users = everyday_users(load_questions(options.questions), people=options.people, seed=options.seed)
    began = time.monotonic()
    heard: list[Exchange] = []

    def hear(exchange: Exchange) -> None:
        heard.append(exchange)
        if len(heard) % 100 == 0:
            print(f"{len(heard)} turns, acceptance of the last hundred {_acceptance(heard[-100:]):.2f}", flush=True)

    async with AsyncOpenAI(base_url=url, api_key=key) as client:
        with Crowd(client, policy, users, journal, concurrency=options.concurrency, heard=hear) as crowd:
            if options.rate is None:
                await crowd.wave(options.turns)
            else:
                await crowd.steadily(options.rate, turns=options.turns)
    tally = crowd.tally
    seconds = time.monotonic() - began
    print(f"{tally.turns} turns in {seconds:.1f} s, {tally.feedback_sent} with feedback, {tally.retries} retries")
    if heard:
        print(f"acceptance {_acceptance(heard):.3f}, versions {', '.join(sorted({x.version for x in heard}))}")
    for kind, number in tally.failures.items():
        print(f"failed: {number} × {kind}", file=sys.stderr)
    return 1 if tally.failures else 0


def _target(options: argparse.Namespace) -> tuple[str, str, str, Path]:
    """URL, key, policy and journal: as given, or those of the configuration's stack."""
    key = os.environ.get(KEY_VARIABLE, "")
    if options.url:
        if not key or not options.policy:
            raise PipelineError(f"--url needs --policy, and an API key in the environment variable {KEY_VARIABLE}")
        return options.url, key, options.policy, Path("simulate") / "journal.jsonl"
    from pipelines.config import load
    from pipelines.control import Control
    from pipelines.home import Home
    from pipelines.stack import addresses, secrets

    config = load(options.config)
    policy = options.policy or next(iter(config.policies), "")
    if policy not in config.policies:
        raise PipelineError(f'{options.config} has no policy "{policy}": it has {", ".join(config.policies) or "none"}')
    home = Home.of(config)
    where = addresses.load(home)
    if not key:
        token = secrets.load_or_create(home.run / "secrets.json").control_token
        key = Control(where.control, token).create_key("simulated users", ["inference", "feedback"])["key"]
    return f"{where.gateway}/v1", key, policy, home.simulate / "journal.jsonl"


def _acceptance(exchanges: Sequence[Exchange]) -> float:
    truths = [x.truth for x in exchanges if x.truth is not None]
    return sum(truths) / len(truths) if truths else 0.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="everloop simulate", description="Simulated users talk to a policy.")
    parser.add_argument("--config", "-c", type=Path, default=Path("everloop.toml"), help="the stack's configuration")
    parser.add_argument("--url", help=f"base URL of another gateway; the key in {KEY_VARIABLE}")
    parser.add_argument("--policy", help="default: the configuration's first")
    parser.add_argument("--questions", type=Path, required=True, help="what they ask: a question file, JSONL")
    parser.add_argument("--turns", type=int, default=128, help="how many exchanges")
    parser.add_argument("--rate", type=float, help="exchanges a second; absent: as fast as --concurrency allows")
    parser.add_argument("--concurrency", type=int, default=64, help="requests in flight, at most")
    parser.add_argument("--people", type=int, default=24, help="how many persons")
    parser.add_argument("--seed", type=int, default=0, help="of what they ask and how they judge")
    return parser
