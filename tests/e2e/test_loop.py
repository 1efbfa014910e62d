"""Two cycles of the whole stack: real Kafka, vLLM, MLflow, DeepSpeed and Great Expectations; a tiny model.

In the first run people like answers with more a than o. The model learns that, and is promoted for it. Then they turn
around: the second run learns from the opposite, the gate keeps it from them, and a person promotes it all the same and
takes that back in MLflow. While the second run is at work one process of each kind is killed with -9.

The fixture `story` is what happened; each test below holds one claim against it.
"""

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from ingest.attribution import Cut, attributed
from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, verify_files
from ingest.contracts.verdict import Verdict
from ingest.datasets import used_turns
from ingest.lake import TURNS, read
from pipelines.home import BASE
from pipelines.records import Outcome, Run, Stage, StageState
from pipelines.stack import leftovers
from tests.e2e import taste
from tests.e2e.babbler import make_babbler
from tests.e2e.crowd import Crowd
from tests.e2e.machine import Machine, until

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.engine]

POLICY = "babbler"
TURNS_OF_A_WAVE = 160
ENOUGH = 152
"""Turns that a run needs: fewer than a wave, and more than are left over or come along with the swaps."""
QUESTIONS = 48
"""Held-out questions, of which each look asks half."""
FLIP = 8
"""Every so-manieth person is contrary: in each dataset there is something to compare."""

CONFIGURATION = """
[everloop]
home = "home"

[gateway]
port = 0

[log]
kind = "kafka"
segment_seconds = 1.0

[[engines]]
policy = "babbler"
role = "serve"
max_num_seqs = 24
max_model_len = 256

[[engines]]
policy = "babbler"
role = "evaluation"
max_num_seqs = 24
max_model_len = 256

[policies.babbler]
model = "model"

[policies.babbler.attribution]
window_seconds = 60

[policies.babbler.rewards]
segment = "none"

[policies.babbler.gate]
max_acceptance_change = 1.0        # they do turn around
max_language_change = 1.0          # and words at random are of any language

[policies.babbler.trainer]
minibatch = 16

[policies.babbler.trainer.optimizer]
learning_rate = 1e-3

# Steps on 48 words go further, in nats, than those on a language: the last ones of a run were seen at 0.4 to 5.3,
# and with 0.04 of the tokens counting.
[policies.babbler.trainer.monitors]
kl = 20
effective_samples = 0.01

[policies.babbler.evaluation]
suite = "questions.jsonl"
target = "taste:score"

[policies.babbler.evaluation.sampling]
answers = 4
max_tokens = 8
concurrency = 24

# 48 words at random are no language: what a language would be stopped for is this model's nature.
[policies.babbler.evaluation.against_champion]
repetition = 1
echo = 1
[policies.babbler.evaluation.against_anchor]
repetition = 1
echo = 1

[policies.babbler.schedule]
every_seconds = 2
retry_seconds = 2
min_turns = ENOUGH
""".replace("ENOUGH", str(ENOUGH))


def honest(number: int, answer: str) -> bool:
    """What people like in the first run."""
    return taste.likes(answer) != (number % FLIP == 0)


def contrary(number: int, answer: str) -> bool:
    """What they say in the second."""
    return not honest(number, answer)


@dataclass
class Story:
    """What happened, and the machine on which it did."""

    machine: Machine
    crowd: Crowd
    statuses: list[dict] = field(default_factory=list)
    """`everloop status --json` after the first promotion, after the override, after the rollback."""
    runs: list[Run] = field(default_factory=list)

    @property
    def checkpoints(self) -> tuple[str, str]:
        return self.runs[0].checkpoint_id, self.runs[1].checkpoint_id


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The whole of it, told once."""
    folder = tmp_path_factory.mktemp("loop")
    make_babbler(folder / "model")
    shutil.copy(taste.__file__, folder / "taste.py")
    questions = ({"id": n, "question": f"What do you say about number {n}?"} for n in range(QUESTIONS))
    (folder / "questions.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, questions)))
    (folder / "everloop.toml").write_text(CONFIGURATION)
    machine = Machine(folder / "everloop.toml", POLICY)
    try:
        machine.up()
        told = Story(machine, Crowd(machine.addresses.gateway, machine.new_key(), POLICY))
        _first_run(told)
        _second_run(told)
        _by_hand(told)
        _everything_lands(told)
        yield told
    finally:
        machine.stack.down()
    assert leftovers.find(machine.home.root, machine.stack.supervisor.pid) == []


def _first_run(story: Story) -> None:
    asyncio.run(story.crowd.wave(TURNS_OF_A_WAVE, honest))
    run = story.machine.until_done(1)
    assert run.outcome == Outcome.PROMOTED, run.reason
    story.runs.append(run)
    story.statuses.append(story.machine.status())


def _second_run(story: Story) -> None:
    """Each process dies at its work: the gateway with requests in flight, the trainer in training, and so on."""
    machine = story.machine
    deaths = {20: "gateway", 70: "forwarder", 110: "kafka"}

    async def watch(answered: int) -> None:
        if answered in deaths:
            await asyncio.to_thread(machine.kill, deaths[answered])

    asyncio.run(story.crowd.wave(TURNS_OF_A_WAVE, contrary, watch))
    machine.until_stage(2, Stage.TRAIN, StageState.RUNNING)
    machine.kill("scheduler")
    machine.kill("control")
    machine.until_stage(2, Stage.TRAIN, StageState.RUNNING, attempts=2)
    machine.strike("trainer", until(lambda: machine.worker("MALLOC_MMAP_THRESHOLD_"), "the trainer"))
    machine.kill("engine-0")  # its agent, and vLLM with it: the champion is sampled once it has come back
    run = machine.until_stage(2, Stage.EVALUATE, StageState.RUNNING)
    machine.kill("mlflow")
    machine.kill("reconciler")
    until(lambda: machine.evaluates(run.checkpoint_id), "the challenger to answer questions")
    machine.strike("vllm", machine.vllm("engine-1"))
    story.runs.append(machine.until_done(2))


def _by_hand(story: Story) -> None:
    """A person overrides the gate, and takes it back in MLflow, while people talk."""
    from mlflow import MlflowClient

    machine, (first, second) = story.machine, story.checkpoints

    async def talk_while(version: str) -> None:
        await asyncio.gather(story.crowd.wave(8, honest), asyncio.to_thread(machine.until_served, version))

    machine.everloop("promote", second, "--override", "we want to see it")
    asyncio.run(talk_while(second))
    story.statuses.append(machine.status())
    client = MlflowClient(tracking_uri=machine.addresses.mlflow, registry_uri=machine.addresses.mlflow)
    number = next(v.version for v in client.search_model_versions(f"name='{POLICY}'") if first in v.source)
    client.set_registered_model_alias(POLICY, "champion", number)
    asyncio.run(talk_while(first))
    story.statuses.append(machine.status())


def _everything_lands(story: Story) -> None:
    machine = story.machine

    def landed() -> bool:
        rows = read(machine.home.lake, TURNS).to_table(columns=["turn_id"]).column(0).to_pylist()
        third = machine.run(3)
        record = third.stage(Stage.LAND) if third else None
        counted: dict[str, int] = record.result.get("counts", {}) if record else {}
        return _acknowledged(story) <= set(rows) and sum(counted.values()) == len(rows)

    until(landed, "every turn to land")


def _acknowledged(story: Story) -> set[str]:
    """Turns whose answer somebody got: people, and the evaluation."""
    found = set(story.crowd.acknowledged)
    for checkpoint in story.checkpoints:
        samples = story.machine.home.checkpoint(POLICY, checkpoint) / "samples.jsonl"
        for line in samples.read_bytes().splitlines():
            row = msgspec.json.decode(line)
            found |= {answer["turn_id"] for side in ("champion", "challenger") for answer in row[side]}
    return found


# --- claims


def test_people_got_an_answer_each_time(story: Story) -> None:
    # A request or a feedback that fails for good raises within the story.
    assert len(set(story.crowd.acknowledged)) == len(story.crowd.acknowledged) == 2 * TURNS_OF_A_WAVE + 2 * 8


def test_every_acknowledged_turn_is_on_the_lake_once_and_has_one_state(story: Story) -> None:
    machine = story.machine
    rows = read(machine.home.lake, TURNS).to_table(columns=["turn_id", "sample"]).to_pylist()
    seen = Counter((row["turn_id"], row["sample"]) for row in rows)
    assert set(seen.values()) == {1}
    assert _acknowledged(story) <= {turn for turn, _ in seen}
    settings = machine.config.policies[POLICY]
    with attributed(
        machine.home.lake,
        POLICY,
        settings.attribution,
        settings.rewards,
        Cut(time.time(), time.time()),
        used_turns(machine.home.datasets, POLICY),
    ) as join:
        states = Counter(join.execute("SELECT turn_id, sample FROM attributed").fetchall())
    assert states == seen


def test_two_datasets_share_no_turn_and_each_passed_its_gate(story: Story) -> None:
    home = story.machine.home
    first, second = (read_manifest(home.datasets / POLICY / run.dataset_id, DatasetManifest) for run in story.runs)
    assert not {pair[:2] for pair in first.pairs} & {pair[:2] for pair in second.pairs}
    for manifest in (first, second):
        assert len(manifest.pairs) >= ENOUGH
        assert manifest.gate
        assert all(check.passed for check in manifest.gate)
        assert {turn for turn, _, _ in manifest.pairs} <= set(story.crowd.acknowledged)
    assert (home.docs / "site" / "index.html").exists()


def test_checkpoints_are_complete_and_know_where_they_come_from(story: Story) -> None:
    home = story.machine.home
    parents = (BASE, story.checkpoints[0])
    for run, parent in zip(story.runs, parents, strict=True):
        folder = home.checkpoint(POLICY, run.checkpoint_id)
        manifest = read_manifest(folder, CheckpointManifest)
        verify_files(folder, manifest.files)
        assert (manifest.parent, manifest.dataset_id) == (parent, run.dataset_id)
        assert manifest.realised_update
    complete = {path.parent.name for path in (home.checkpoints / POLICY).glob("*/manifest.json")}
    assert {path.name for path in (home.checkpoints / POLICY).iterdir() if path.is_dir()} == complete


def test_what_people_like_is_promoted_and_what_they_do_not_is_not(story: Story) -> None:
    assert story.runs[0].outcome == Outcome.PROMOTED
    assert story.runs[1].outcome in (Outcome.HELD, Outcome.REJECTED)
    found = {row["checkpoint_id"]: row for row in json.loads(story.machine.everloop("versions", "--json"))}
    assert set(found) == {BASE, *story.checkpoints}
    for run, champion in zip(story.runs, (BASE, story.checkpoints[0]), strict=True):
        verdict = read_manifest(story.machine.home.checkpoint(POLICY, run.checkpoint_id), Verdict, "verdict.json")
        assert (verdict.champion, verdict.target, verdict.questions) == (champion, "taste:score", QUESTIONS // 2)
        assert found[run.checkpoint_id]["decision"] == verdict.decision
    assert found[story.checkpoints[1]]["override"] == "we want to see it"
    assert found[story.checkpoints[0]]["aliases"] == ["champion"]


def test_the_fleet_serves_what_the_alias_names(story: Story) -> None:
    first, second = story.checkpoints
    for status, version in zip(story.statuses, (first, second, first), strict=True):
        assert status["policies"][POLICY]["desired"] == version
        assert status["policies"][POLICY]["converged"]
        assert [e["version"] for e in status["engines"] if e["role"] == "serve"] == [version]
        assert status["problems"] == []


def test_each_swap_was_hot_and_proven(story: Story) -> None:
    first, second = story.checkpoints
    machine = story.machine
    serving = {e["engine_id"] for e in machine.control.fleet()["engines"] if e.get("role", "serve") == "serve"}
    swaps = [s for s in machine.control.swaps(POLICY, 0) if s["engine_id"] in serving]
    assert [(s["from_version"], s["to_version"]) for s in swaps] == [(BASE, first), (first, second), (second, first)]
    for swap in swaps:
        assert swap["load"] == "hot"
        assert not swap.get("error")
        assert swap["checksum_equal"]
        assert swap["logprob_difference"] is not None
    assert story.runs[0].result(Stage.ROLL_OUT)["swaps"] == swaps[:1]


def test_whatever_was_killed_came_back(story: Story) -> None:
    machine = story.machine
    supervised = {"gateway", "forwarder", "kafka", "control", "scheduler", "mlflow", "reconciler", "engine-0"}
    assert set(machine.killed) == supervised | {"trainer", "vllm"}
    for name in supervised:
        assert machine.pid(name) not in (0, machine.killed[name])
    assert story.runs[1].stage(Stage.TRAIN).attempts == 2
