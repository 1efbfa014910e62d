"""Promotion on real parts: MLflow server, control process, the reconciler as a process, and engines that only beat.

The engines' heartbeats come from a thread that adopts whatever control assigns: what a swap is, is tested elsewhere.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from ingest.contracts.rollout import RolloutState
from ingest.contracts.verdict import Decision
from pipelines.stack.addresses import free_port
from promotion import rollout
from promotion.errors import NotConverged, PromotionError, PromotionRefused, TakenBack
from promotion.names import TAG_DECISION, TAG_EVALUATION_RUN, TAG_OVERRIDE, TAG_REFUSED
from promotion.reconcile import wait_converged
from promotion.registry import champion, promote, record_verdict, register, rollback, versions
from tests.checkpoint_folders import make_checkpoint, make_verdict

pytestmark = pytest.mark.integration

TOKEN = "control-token"
PATIENCE = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)


class Stack:
    """One policy with a name of its own on the shared MLflow server; processes that can be killed and started."""

    def __init__(self, folder: Path, mlflow: str) -> None:
        self.mlflow, self.policy = mlflow, f"assistant-{folder.name}"
        self.checkpoints, self.folder = folder / "checkpoints", folder
        self.registry = MlflowClient(tracking_uri=mlflow, registry_uri=mlflow)
        self.port = free_port()
        self.control = f"http://127.0.0.1:{self.port}"
        self.environment = {**os.environ, "EVERLOOP_CONTROL_TOKEN": TOKEN}
        self.processes: dict[str, subprocess.Popen] = {}
        self.beating = threading.Event()
        self.refusing: set[str] = set()
        self.engines = [threading.Thread(target=self._beat, args=(f"engine-{n}",)) for n in range(2)]

    def start(self, name: str) -> None:
        commands = {
            "control": ["serving.control", "--port", str(self.port), "--database", str(self.folder / "control.db")],
            "reconciler": [
                *("promotion.reconcile", "--mlflow", self.mlflow, "--control", self.control),
                *("--checkpoints", str(self.checkpoints), "--policy", self.policy, "--poll-seconds", "0.2"),
            ],
        }
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *commands[name]], env=self.environment, stdout=output, stderr=output
            )
        if name == "control":
            until(self._control_is_up, "control answers")

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> None:
        self.beating.clear()
        for thread in self.engines:
            if thread.is_alive():
                thread.join()
        for name in self.processes:
            self.kill(name)

    def call(self, method: str, path: str, body: object = None) -> dict:
        request = urllib.request.Request(
            self.control + path,
            None if body is None else json.dumps(body).encode(),
            {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.loads(response.read() or b"{}")

    def begin(self) -> None:
        """The base serves, as `everloop up` leaves it."""
        base = make_checkpoint(self.checkpoints, "base", policy=self.policy, kind="base")
        register(mlflow=self.mlflow, checkpoint=base)
        promote(mlflow=self.mlflow, checkpoints=self.checkpoints, policy=self.policy, checkpoint_id="base")
        self.start("control")
        desired = {"version": "base", "path": str(base / "export")}
        self.call("PUT", f"/v1/policies/{self.policy}", {"name": self.policy, "desired": desired})
        self.beating.set()
        for thread in self.engines:
            thread.start()
        self.start("reconciler")
        self.serves("base")

    def add(self, checkpoint_id: str, decision: Decision | None, parent: str = "base") -> Path:
        checkpoint = make_checkpoint(self.checkpoints, checkpoint_id, policy=self.policy, parent=parent)
        register(mlflow=self.mlflow, checkpoint=checkpoint)
        if decision is not None:
            make_verdict(checkpoint, decision)
            record_verdict(mlflow=self.mlflow, checkpoint=checkpoint)
        return checkpoint

    def number(self, checkpoint_id: str) -> str:
        found = versions(mlflow=self.mlflow, policy=self.policy)
        return next(str(v.number) for v in found if v.checkpoint_id == checkpoint_id)

    def move_alias(self, checkpoint_id: str) -> None:
        """What a person does in the UI."""
        self.registry.set_registered_model_alias(self.policy, "champion", self.number(checkpoint_id))

    def champion(self) -> str | None:
        return champion(mlflow=self.mlflow, policy=self.policy)

    def serves(self, checkpoint_id: str) -> None:
        """Waits until the fleet reports a version, and its record says so."""
        wait_converged(control=self.control, token=TOKEN, policy=self.policy, version=checkpoint_id, timeout=PATIENCE)
        until(lambda: self.state(checkpoint_id) is RolloutState.SERVING, f"{checkpoint_id} is recorded as serving")

    def state(self, checkpoint_id: str) -> RolloutState | None:
        standing = rollout.read(self.checkpoints / self.policy / checkpoint_id)
        return standing and standing.state

    def _control_is_up(self) -> bool:
        try:
            return self.call("GET", "/health") is not None
        except OSError:
            return False

    def _beat(self, engine_id: str) -> None:
        version, refusal = "base", None
        while self.beating.is_set():
            beat = {"policy": self.policy, "url": "http://127.0.0.1:9", "token": "t", "role": "serve"}
            beat["refusal"] = refusal
            try:
                path = f"/v1/engines/{engine_id}/heartbeat"
                answer = self.call("POST", path, {**beat, "state": "ready", "version": version})
                target = answer["target"]["version"] if answer.get("target") else None
                if target in self.refusing:
                    refusal = {"version": target, "error": f"{target} was not taken in", "attempts": 2}
                elif target is not None:
                    version, refusal = target, None
            except OSError:
                pass
            time.sleep(0.1)


@pytest.fixture
def stack(tmp_path, mlflow_server) -> Iterator[Stack]:
    stack = Stack(tmp_path, mlflow_server)
    try:
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def running(stack) -> Stack:
    stack.begin()
    return stack


def test_registering_and_recording_may_be_repeated(stack) -> None:
    checkpoint = stack.add("c1", Decision.PROMOTE)
    number = int(stack.number("c1"))
    assert register(mlflow=stack.mlflow, checkpoint=checkpoint) == number
    run = record_verdict(mlflow=stack.mlflow, checkpoint=checkpoint)
    assert record_verdict(mlflow=stack.mlflow, checkpoint=checkpoint) == run
    (version,) = versions(mlflow=stack.mlflow, policy=stack.policy, checkpoints=stack.checkpoints)
    assert (version.decision, version.aliases, version.state) == ("promote", ("challenger",), "accepted")
    raw = stack.registry.get_model_version(stack.policy, str(number))
    assert raw.tags[TAG_DECISION] == "promote"
    assert raw.tags[TAG_EVALUATION_RUN] == run
    assert f"/runs/{run})" in raw.description
    assert str(stack.folder) not in raw.source
    artifacts = {a.path for a in stack.registry.list_artifacts(run)}
    assert artifacts == {"verdict.json", "samples.jsonl", "report.html"}
    assert stack.registry.get_run(run).data.metrics["difference"] == pytest.approx(0.1)


def test_only_a_verdict_or_a_person_promotes(stack) -> None:
    checkpoint = stack.add("c1", None)
    ask = {"mlflow": stack.mlflow, "checkpoints": stack.checkpoints, "policy": stack.policy, "checkpoint_id": "c1"}
    with pytest.raises(PromotionRefused, match="never evaluated"):
        promote(**ask)
    make_verdict(checkpoint, Decision.REJECT)
    record_verdict(mlflow=stack.mlflow, checkpoint=checkpoint)
    assert versions(mlflow=stack.mlflow, policy=stack.policy)[0].aliases == ()
    with pytest.raises(PromotionRefused, match="verdict is reject"):
        promote(**ask)
    assert stack.champion() is None
    promote(**ask, override="ticket 7")
    assert stack.champion() == "c1"
    (version,) = versions(mlflow=stack.mlflow, policy=stack.policy, checkpoints=stack.checkpoints)
    assert (version.override, version.state) == ("ticket 7", "accepted")
    with pytest.raises(PromotionError, match="not in the registry"):
        promote(**{**ask, "checkpoint_id": "absent"})
    with pytest.raises(PromotionError, match="nothing to go back to"):
        rollback(mlflow=stack.mlflow, checkpoints=stack.checkpoints, policy=stack.policy)


def test_the_alias_moved_by_hand_swaps_the_fleet_and_moved_back_rolls_back(running) -> None:
    running.add("c1", Decision.PROMOTE)
    running.move_alias("c1")
    running.serves("c1")
    assert running.state("base") is RolloutState.RETIRED
    running.move_alias("base")
    running.serves("base")
    assert running.state("c1") is RolloutState.RETIRED
    running.move_alias("c1")
    running.serves("c1")
    running.add("c2", Decision.PROMOTE, parent="c1")
    running.move_alias("c2")
    running.serves("c2")
    went_to = rollback(mlflow=running.mlflow, checkpoints=running.checkpoints, policy=running.policy)
    assert went_to == "c1"
    running.serves("c1")
    # A second rollback goes further back, not to what the first one took back.
    went_to = rollback(mlflow=running.mlflow, checkpoints=running.checkpoints, policy=running.policy)
    assert went_to == "base"
    running.serves("base")


def test_a_rejected_version_is_put_back_until_a_person_overrides(running) -> None:
    running.add("bad", Decision.REJECT)
    number = running.number("bad")
    running.move_alias("bad")
    until(lambda: running.champion() == "base", "the alias is back")
    refused = running.registry.get_model_version(running.policy, number)
    assert "verdict is reject" in refused.tags[TAG_REFUSED]
    assert "Refused as champion" in refused.description
    running.serves("base")
    assert running.state("bad") is RolloutState.REJECTED

    running.registry.set_model_version_tag(running.policy, number, TAG_OVERRIDE, "ticket 7")
    running.move_alias("bad")
    running.serves("bad")
    standing = rollout.read(running.checkpoints / running.policy / "bad")
    assert standing is not None
    assert standing.overridden_by == "ticket 7"
    assert TAG_REFUSED not in running.registry.get_model_version(running.policy, number).tags


def test_a_version_that_every_engine_refuses_is_rolled_back(running) -> None:
    checkpoint = running.add("c1", Decision.PROMOTE)
    running.refusing = {"c1"}
    running.move_alias("c1")
    with pytest.raises(TakenBack, match="c1 was taken back: rolled back: engine engine-0 refused it"):
        wait_converged(
            control=running.control,
            token=TOKEN,
            policy=running.policy,
            version="c1",
            timeout=PATIENCE,
            checkpoint=checkpoint,
        )
    until(lambda: running.champion() == "base", "the alias is back")
    running.serves("base")
    assert running.state("c1") is RolloutState.REJECTED
    tags = running.registry.get_model_version(running.policy, running.number("c1")).tags
    assert "was rolled back: engine engine-0 refused it: c1 was not taken in" in tags[TAG_REFUSED]
    with pytest.raises(PromotionRefused, match="was rolled back"):
        promote(mlflow=running.mlflow, checkpoints=running.checkpoints, policy=running.policy, checkpoint_id="c1")


def test_a_killed_reconciler_and_a_killed_control_go_on(running) -> None:
    running.add("c1", Decision.PROMOTE)
    running.kill("reconciler")
    promote(mlflow=running.mlflow, checkpoints=running.checkpoints, policy=running.policy, checkpoint_id="c1")
    assert running.state("c1") is RolloutState.ACCEPTED
    running.start("reconciler")
    running.serves("c1")

    running.kill("control")
    running.move_alias("base")
    log = running.folder / "reconciler.log"
    until(lambda: "control does not answer" in log.read_text(), "the reconciler noticed")
    time.sleep(1)
    assert log.read_text().count("control does not answer") == 1
    running.start("control")
    running.serves("base")
    assert running.processes["reconciler"].poll() is None
    assert TOKEN not in log.read_text()


def test_waiting_for_a_fleet_that_does_not_come_names_who_is_behind(running) -> None:
    with pytest.raises(NotConverged, match=r"does not serve other everywhere.*engine-\d ready on base"):
        wait_converged(control=running.control, token=TOKEN, policy=running.policy, version="other", timeout=1)


def test_the_reconciler_imports_nothing_heavy() -> None:
    said = (
        "import sys, promotion.reconcile; print([m for m in ('mlflow','pandas','numpy','torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", said], text=True).strip() == "[]"


def test_without_a_token_it_says_what_to_set() -> None:
    command = [sys.executable, "-m", "promotion.reconcile", "--mlflow", "http://127.0.0.1:9"]
    command += ["--control", "http://127.0.0.1:9", "--checkpoints", ".", "--policy", "p"]
    environment = {k: v for k, v in os.environ.items() if k != "EVERLOOP_CONTROL_TOKEN"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "EVERLOOP_CONTROL_TOKEN is not set" in done.stderr
