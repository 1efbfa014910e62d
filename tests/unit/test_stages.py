"""The stages' shell: what it calls exists and takes these arguments; what comes back ends the run or goes on."""

import ast
import threading
from pathlib import Path
from typing import Any

import pytest

from ingest.config import ImplicitSettings
from ingest.contracts.rollout import RolloutState
from pipelines.config import load
from pipelines.control import Control
from pipelines.errors import PipelineError, StageFailed
from pipelines.flow import Ended
from pipelines.home import Home
from pipelines.records import Outcome, Run, Stage, StageState
from pipelines.runs import Runs
from pipelines.stack.addresses import Addresses
from pipelines.stack.secrets import Secrets
from pipelines.stages import LocalStages
from promotion import rollout
from tests.checkpoint_folders import make_checkpoint
from tests.unit.test_config import GOOD

ROOT = Path(__file__).parents[2]


def parameters(target: str) -> tuple[set[str], set[str]]:
    """(all, required) keyword arguments of `module:function`, read from its source: importing it is slow."""
    module, name = target.split(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text())
    defined = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in defined:
        (source,) = [
            node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]
        ]
        return parameters(f"{source}:{name}")
    arguments = defined[name]
    names = [a.arg for a in arguments.kwonlyargs]
    required = {
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    }
    return set(names), required


class Answering:
    """Workers that give prepared answers; an error is raised. Each call is held against the real function."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.called: list[str] = []

    def call(self, family: str, target: str, *, report: object = None, **arguments: Any) -> Any:
        given = set(arguments) | ({"progress"} if report else set())
        known, required = parameters(target)
        assert required <= given <= known, f"{target} takes {sorted(known)}, it was given {sorted(given)}"
        name = target.split(":")[1]
        self.called.append(name)
        answer = self.answers.get(name, {})
        if isinstance(answer, Exception):
            raise answer
        return answer


class Fleet(Control):
    """A control process whose evaluation engine is ready at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, method: str, path: str, body: object = None) -> dict:
        self.asked.append(f"{method} {path}")
        engine = {"engine_id": "e", "policy": "helper", "role": "evaluation", "state": "ready", "version": self.version}
        return {"engines": [engine], "swaps": [{"to_version": self.version}, {"to_version": "other"}]}

    version = ""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "here" / "pipelines.db")


def stages(
    runs: Runs, tmp_path: Path, fleet: Fleet | None = None, **answers: Any
) -> tuple[LocalStages, Answering, Run]:
    path = tmp_path / "everloop.toml"
    path.write_text(GOOD)
    workers = Answering(**answers)
    made = LocalStages(
        "helper",
        load(path, {}),
        Home.at(tmp_path / "here"),
        Addresses(ports={"gateway": 1, "control": 2, "mlflow": 3}),
        Secrets(control_token="t", hash_secret="00", engine_token="t", webhook_secret="s"),
        runs,
        workers,  # type: ignore[arg-type]
        threading.Event(),
        clock=lambda: 100.0,
    )
    run = runs.create("helper")
    if fleet is not None:
        made._control = fleet
        fleet.version = run.checkpoint_id
    return made, workers, run


LANDED = {"watermark": 90.0, "lake_versions": {"turns": 3}}


def test_land_tells_the_cut_and_how_many_are_ready(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, land=LANDED, attribute={"ready": 7, "counts": {}})
    landed = made.land(run)
    assert (landed["cut_at"], landed["watermark"], landed["ready"]) == (100.0, 90.0, 7)
    made.freeze(run, landed)
    assert workers.called == ["land", "attribute", "freeze"]


def test_a_lake_that_did_not_change_is_joined_again_only_until_all_is_settled(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, land=LANDED, attribute={"ready": 7, "counts": {}})
    settle = made._settings.attribution.settle_seconds

    def look(at: float) -> dict:
        made._clock = lambda: at
        taken_up = runs.get(run.run_id)
        runs.begin(run.run_id, Stage.LAND)
        result = made.land(taken_up)
        runs.end(run.run_id, Stage.LAND, StageState.WAITING, result)
        return result

    look(100.0)
    look(100.0 + settle)
    assert look(101.0 + settle)["cut_at"] == 101.0 + settle
    joined = workers.called.count("attribute")
    workers.answers["land"] = LANDED | {"watermark": 95.0}
    later = look(200.0 + settle)
    assert (later["cut_at"], later["watermark"]) == (101.0 + settle, 95.0)
    assert workers.called.count("attribute") == joined == 3
    workers.answers["land"] = LANDED | {"lake_versions": {"turns": 4}}
    assert look(300.0 + settle)["cut_at"] == 300.0 + settle


def test_where_silence_is_worth_something_a_lake_is_joined_until_every_window_has_passed(
    runs: Runs, tmp_path: Path
) -> None:
    made, workers, run = stages(runs, tmp_path, land=LANDED, attribute={"ready": 0, "counts": {}})
    implicit = ImplicitSettings(abandoned=-0.5)
    rewards = made._settings.rewards.model_copy(update={"implicit": implicit})
    made._settings = made._settings.model_copy(update={"rewards": rewards})
    quiet = made._settings.attribution.settle_seconds + made._settings.attribution.window_seconds

    def look(at: float, watermark: float) -> int:
        made._clock = lambda: at
        workers.answers["land"] = LANDED | {"watermark": watermark}
        taken_up = runs.get(run.run_id)
        runs.begin(run.run_id, Stage.LAND)
        runs.end(run.run_id, Stage.LAND, StageState.WAITING, made.land(taken_up))
        return workers.called.count("attribute")

    assert look(100.0, 99.0) == 1
    assert look(101.0 + quiet, 50.0) == 2  # the log is behind
    assert look(102.0 + quiet, 101.0 + quiet) == 3
    assert look(103.0 + quiet, 102.0 + quiet) == 3


def test_a_gate_that_fails_ends_the_run_with_its_checks(runs: Runs, tmp_path: Path) -> None:
    failed = StageFailed("GateFailed", "…", {"checks": [{"name": "row count", "observed": "3"}]})
    made, _, run = stages(runs, tmp_path, gate=failed)
    with pytest.raises(Ended, match="is not fit to train on: row count: saw 3") as ended:
        made.gate(run)
    assert ended.value.outcome == Outcome.GATE_FAILED
    broken, _, run = stages(runs, tmp_path, gate=StageFailed("GateBroken", "no column"))
    with pytest.raises(StageFailed, match="no column"):
        broken.gate(run)


def test_a_monitor_that_stops_training_ends_the_run(runs: Runs, tmp_path: Path) -> None:
    made, _, run = stages(runs, tmp_path, train=StageFailed("TrainingStopped", "kl rose to 3"))
    with pytest.raises(Ended, match="kl rose to 3") as ended:
        made.train(run, {"parent": "base"})
    assert ended.value.outcome == Outcome.TRAINING_STOPPED


def test_the_first_run_starts_at_the_base(runs: Runs, tmp_path: Path) -> None:
    made, _, run = stages(runs, tmp_path, champion=None)
    first = {"parent": "base", "champion": "base", "look": 1, "holds": 0, "why": "the champion"}
    assert made.lineage(run) == first
    assert made.register(run) == {"model_version": {}}


def test_a_champion_that_nobody_serves_fails_the_run_before_it_trains(runs: Runs, tmp_path: Path) -> None:
    behind = StageFailed("NotConverged", "policy helper does not serve c7 everywhere after 60 s: desired is base")
    made, workers, run = stages(runs, tmp_path, champion="c7", wait_converged=behind)
    with pytest.raises(PipelineError, match="the champion c7 is not what the fleet serves: policy helper does not"):
        made.lineage(run)
    assert workers.called == ["champion", "wait_converged"]


def test_the_challenger_is_loaded_before_it_is_sampled(runs: Runs, tmp_path: Path) -> None:
    fleet = Fleet()
    made, workers, run = stages(runs, tmp_path, fleet, evaluate={"decision": "promote"})
    assert made.evaluate(run, {"champion": "base", "look": 1, "holds": 0})["decision"] == "promote"
    assert fleet.asked == ["PUT /v1/policies/helper/under_evaluation", "GET /v1/fleet"]
    assert workers.called == ["champion", "sample_champion", "evaluate"]


def test_a_champion_moved_while_a_run_trained_ends_it_before_anything_is_sampled(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, Fleet(), champion="c7")
    with pytest.raises(Ended, match="c7 became the champion") as ended:
        made.evaluate(run, {"champion": "c8", "look": 1, "holds": 0})
    assert ended.value.outcome == Outcome.HELD
    assert workers.called == ["champion"]


def test_what_a_person_took_back_is_not_promoted_again(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path)
    checkpoint = make_checkpoint(made._home.checkpoints, run.checkpoint_id, policy="helper")
    S = RolloutState
    for state in (S.REGISTERED, S.ACCEPTED, S.ROLLING, S.SERVING, S.RETIRED):
        rollout.move(checkpoint, state, reason="", now=1.0)
    with pytest.raises(Ended, match="took it back") as ended:
        made.decide(run, {"decision": "promote", "reasons": [], "champion": "base", "created_at": 1.0})
    assert ended.value.outcome == Outcome.REJECTED
    assert "promote" not in workers.called


def test_an_engine_that_does_not_come_is_a_sentence() -> None:
    times = iter([0.0, 1.0, 400.0])
    fleet = Fleet()
    with pytest.raises(
        PipelineError, match=r"no evaluation engine .* was ready with c9 in 300 s \(e is ready on nothing"
    ):
        fleet.wait_evaluation_engine("helper", "c9", 300, threading.Event(), clock=lambda: next(times))
    stop = threading.Event()
    stop.set()
    with pytest.raises(PipelineError, match="asked to stop"):
        fleet.wait_evaluation_engine("helper", "c9", 300, stop, clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("decision", "outcome"), [("hold", Outcome.HELD), ("canary", Outcome.CANARY), ("reject", Outcome.REJECTED)]
)
def test_what_is_not_promoted_ends_the_run_and_moves_no_alias(
    runs: Runs, tmp_path: Path, decision: str, outcome: Outcome
) -> None:
    made, workers, run = stages(runs, tmp_path, champion="base")
    with pytest.raises(Ended, match="because") as ended:
        made.decide(run, {"decision": decision, "reasons": ["because"], "champion": "base", "created_at": 50.0})
    assert ended.value.outcome == outcome
    assert "promote" not in workers.called


def test_promote_moves_the_alias_and_the_fleet_follows(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, Fleet(), champion="base")
    verdict = {"decision": "promote", "reasons": ["better"], "champion": "base", "created_at": 50.0}
    decided = made.decide(run, verdict)
    assert workers.called == ["record_verdict", "champion", "promote"]
    rolled = made.roll_out(run, decided)
    assert rolled["swaps"] == [{"to_version": run.checkpoint_id}]


def promoted(made: LocalStages, run: Run, *states: RolloutState) -> Path:
    """The run's checkpoint, whose record went through `states`."""
    checkpoint = make_checkpoint(made._home.checkpoints, run.checkpoint_id, policy="helper")
    for state in (RolloutState.REGISTERED, RolloutState.ACCEPTED, *states):
        rollout.move(checkpoint, state, reason="", now=1.0)
    return checkpoint


def test_a_fleet_that_does_not_follow_in_time_is_rolled_back(runs: Runs, tmp_path: Path) -> None:
    behind = StageFailed("NotConverged", "e1 ready on base (shapes differ)")
    made, _, run = stages(runs, tmp_path, Fleet(), wait_converged=behind)
    checkpoint = promoted(made, run, RolloutState.ROLLING)
    with pytest.raises(Ended, match=r"was rolled back: e1 ready on base \(shapes differ\)") as ended:
        made.roll_out(run, {"since": 1.0, "promoted_at": 2.0})
    assert ended.value.outcome == Outcome.ROLLED_BACK
    standing = rollout.read(checkpoint)
    assert standing is not None
    assert standing.state is RolloutState.REJECTED


def test_a_fleet_that_followed_at_the_last_moment_is_left_alone(runs: Runs, tmp_path: Path) -> None:
    made, _, run = stages(runs, tmp_path, Fleet(), wait_converged=StageFailed("NotConverged", "e1 is behind"))
    promoted(made, run, RolloutState.ROLLING, RolloutState.SERVING)
    assert made.roll_out(run, {"since": 1.0, "promoted_at": 2.0})["swaps"]


def test_what_the_reconciler_took_back_ends_the_run_with_its_reason(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, Fleet(), wait_converged=StageFailed("TakenBack", "engines refused it"))
    with pytest.raises(Ended, match="engines refused it") as ended:
        made.roll_out(run, {"since": 1.0, "promoted_at": 2.0})
    assert ended.value.outcome == Outcome.ROLLED_BACK
    promoted(made, run, RolloutState.ROLLING, RolloutState.REJECTED)
    with pytest.raises(Ended, match="was") as ended:  # killed between the alias and the record: done again
        made.decide(run, {"decision": "promote", "reasons": [], "champion": "base", "created_at": 1.0})
    assert ended.value.outcome == Outcome.ROLLED_BACK
    assert "promote" not in workers.called


def test_trouble_on_the_way_is_no_rollback(runs: Runs, tmp_path: Path) -> None:
    made, _, run = stages(runs, tmp_path, Fleet(), wait_converged=StageFailed("WorkerDied", "out of memory"))
    with pytest.raises(StageFailed, match="out of memory"):
        made.roll_out(run, {"since": 1.0, "promoted_at": 2.0})


def test_a_champion_that_a_person_chose_meanwhile_is_not_replaced(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path, champion="c7")
    verdict = {"decision": "promote", "reasons": ["better"], "champion": "base", "created_at": 50.0}
    with pytest.raises(Ended, match="c7 became the champion") as ended:
        made.decide(run, verdict)
    assert ended.value.outcome == Outcome.HELD
    assert "promote" not in workers.called


def test_decide_done_again_after_the_alias_moved_goes_on(runs: Runs, tmp_path: Path) -> None:
    made, workers, run = stages(runs, tmp_path)
    workers.answers["champion"] = run.checkpoint_id
    verdict = {"decision": "promote", "reasons": ["better"], "champion": "base", "created_at": 50.0}
    assert made.decide(run, verdict)["promoted"] == run.checkpoint_id
