"""The demo's plot: measure, let people talk and the loop learn, measure again.

People talk in waves. A wave begins when the verdict on the run before is in, so that versions are swapped under
traffic, and nobody samples while the trainer has the processors. The runs themselves are the scheduler's.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from pipelines.config import Config
from pipelines.control import Control
from pipelines.demo.errors import DemoFailed
from pipelines.demo.facts import Addresses, Facts
from pipelines.demo.measure import Measured, measure
from pipelines.demo.show import Scene, Screen
from pipelines.demo.watch import Watch
from pipelines.home import Home
from pipelines.records import Run, RunState, Stage, StageState
from pipelines.runs import Runs
from pipelines.simulate.questions import load_questions
from pipelines.simulate.traffic import Crowd, Exchange
from pipelines.simulate.users import everyday_users

POLICY = "demo"
TURNS = 128
"""Turns of a wave."""
PEOPLE = 24
TRICKLE = 4.0
"""Requests a second while the last version is rolled out and no further wave is wanted."""
PATIENCE = 25.0
"""Seconds after a wave by which a run should have begun; then a few more turns are sent."""
MORE = 32
CAPTURE_SECONDS = 120.0
"""How long the last turns may take from the spool to the lake."""
CLIENT_SECONDS = 120.0


@dataclass(frozen=True)
class Place:
    """Where the plot plays: the stack that is up, and the keys to it."""

    config: Config
    home: Home
    control: Control
    addresses: Addresses
    user_key: str
    evaluation_key: str
    questions: Path
    log: str


async def play(place: Place, cycles: int, scene: Scene, screen: Screen, steps: dict[str, float], seed: int) -> Facts:
    """All of it; raises `DemoFailed` where it cannot go on. `steps` has the seconds of what came before."""
    final = load_questions(place.questions / "final.jsonl")
    traffic = load_questions(place.questions / "traffic.jsonl")
    runs = Runs(place.home.database)
    watch = Watch(POLICY, runs, place.control, scene, screen)
    heard: list[Exchange] = []

    def hear(exchange: Exchange) -> None:
        heard.append(exchange)
        scene.hear(exchange)

    began = time.time() - sum(steps.values())
    url = f"{place.addresses.gateway}/v1"
    judge = AsyncOpenAI(base_url=url, api_key=place.evaluation_key, timeout=CLIENT_SECONDS)
    people = AsyncOpenAI(base_url=url, api_key=place.user_key, timeout=CLIENT_SECONDS)
    users = everyday_users(traffic, people=PEOPLE, seed=seed)
    async with judge, people:
        with screen.step("measuring the base on the final questions", steps):
            before = await measure(judge, POLICY, final)
        screen.say(f"the base, {before.version}: acceptance {before.acceptance:.2f} on {len(final)} final questions")
        with Crowd(people, POLICY, users, place.home.simulate / "journal.jsonl", heard=hear) as crowd:
            scene.tally = crowd.tally
            with screen.step("the loop", steps):
                await _cycles(cycles, crowd, watch, scene, screen)
        with screen.step("measuring the champion on the final questions", steps):
            after = await measure(judge, POLICY, final)
        screen.say(f"the champion, {after.version}: acceptance {after.acceptance:.2f}")
    turns = frozenset(x.turn_id for x in heard) | _turns(before) | _turns(after)
    with screen.step("waiting for the last turns to land", steps):
        captured, states = await asyncio.to_thread(_landed, place.home, turns, runs)
    return Facts(
        planned_cycles=cycles,
        started_at=began,
        finished_at=time.time(),
        steps=steps,
        runs=tuple(reversed(runs.history(POLICY))),
        exchanges=tuple(heard),
        tally=crowd.tally,
        before=before,
        after=after,
        turns=turns,
        captured=captured,
        states=states,
        log=place.log,
        addresses=place.addresses,
        seed=seed,
    )


async def _cycles(cycles: int, crowd: Crowd, watch: Watch, scene: Scene, screen: Screen) -> None:
    scene.cycle = 1
    await crowd.wave(TURNS)
    for cycle in range(1, cycles + 1):
        await _begun(cycle, crowd, watch, screen)
        run = await watch.until(cycle, lambda run: _judged(run) or _is_done(run))
        if cycle < cycles:
            scene.cycle = cycle + 1
            await asyncio.gather(crowd.wave(TURNS), watch.until(cycle, _is_done))
        elif run is not None and not _is_done(run):
            over = asyncio.Event()
            trickle = asyncio.create_task(crowd.steadily(TRICKLE, until=over))
            try:
                await watch.until(cycle, _is_done)
            finally:
                over.set()
                await trickle


async def _begun(cycle: int, crowd: Crowd, watch: Watch, screen: Screen) -> None:
    """Waits until the run has enough turns; sends a few more where silence left too few."""
    for _ in range(8):
        if await watch.until(cycle, _has_enough, timeout=PATIENCE):
            return
        screen.say(f"too few people said what they think: {MORE} more turns")
        await crowd.wave(MORE)
    raise DemoFailed(f"cycle {cycle} does not begin, though turns were sent: is the scheduler running? See its log")


def _has_enough(run: Run) -> bool:
    landed = run.stage(Stage.LAND)
    return landed is not None and landed.state == StageState.FINISHED


def _judged(run: Run) -> bool:
    """From here on the alias may move: the swap begins within a second of it, before `roll_out` is recorded."""
    return run.stage(Stage.DECIDE) is not None


def _is_done(run: Run) -> bool:
    return run.state == RunState.DONE


def _turns(measured: Measured) -> frozenset[str]:
    return frozenset(answer.turn_id for row in measured.answers for answer in row)


def _landed(home: Home, turns: frozenset[str], runs: Runs) -> tuple[frozenset[str], dict[str, int]]:
    """The ids in the lake, and turns by state, once all of `turns` are there and judged, or time is up."""
    from ingest.lake import TURNS, read

    deadline = time.monotonic() + CAPTURE_SECONDS
    while True:
        found = frozenset(read(home.lake, TURNS).to_table(columns=["turn_id"]).column(0).to_pylist())
        newest = runs.history(POLICY, 1)
        record = newest[0].stage(Stage.LAND) if newest else None
        states: dict[str, int] = (record.result if record else {}).get("counts", {})
        told = sum(states.values()) >= len(found) and not states.get("open")
        if (turns <= found and told) or time.monotonic() > deadline:
            return found, states
        time.sleep(1.0)
