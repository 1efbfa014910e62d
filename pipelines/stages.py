"""What each stage of the loop does on real parts: the shell of `pipelines.flow`.

A stage gathers its arguments, calls its function in a resident worker, and hands back JSON-like values. Order,
records and retries are the flow's business; the work itself is the packages'.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.rollout import RolloutState
from pipelines.config import Config, PolicyConfig
from pipelines.control import Control
from pipelines.errors import PipelineError, StageFailed
from pipelines.flow import Ended
from pipelines.home import BASE, Home
from pipelines.lineage import origin
from pipelines.records import BY_VERDICT, Outcome, Run, Stage
from pipelines.runs import Runs
from pipelines.stack.addresses import Addresses
from pipelines.stack.secrets import Secrets
from pipelines.workers import Report, Workers
from promotion import rollout

FLEET_SECONDS = 60.0
"""How long a run waits, before it trains, for the fleet to serve the champion: a swap or an engine's restart."""


class LocalStages:
    """The stages of one policy, in this home folder, against the processes at `addresses`."""

    def __init__(
        self,
        policy: str,
        config: Config,
        home: Home,
        addresses: Addresses,
        secrets: Secrets,
        runs: Runs,
        workers: Workers,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy, self._home, self._runs, self._clock = policy, home, runs, clock
        self._config, self._addresses, self._secrets = config, addresses, secrets
        self._settings: PolicyConfig = config.policies[policy]
        self._control = Control(addresses.control, secrets.control_token)
        self._workers, self._stop = workers, stop

    def land(self, run: Run) -> dict:
        """Log to lake, then each turn's state. The cut of everything later in the run is set here."""
        h, s = self._home, self._settings
        log = self._config.log_settings(self._addresses.kafka)
        landed = self._ingest(
            "ingest.land:land", log=log, spool=h.spool, lake=h.lake, settings=self._config.lake, datasets=h.datasets
        )
        cut_at = self._clock()
        inputs = {
            "lake_versions": landed["lake_versions"],
            "attribution": s.attribution.model_dump(mode="json"),
            "rewards": s.rewards.model_dump(mode="json"),
        }
        before = run.waiting(Stage.LAND)
        same = before is not None and before["inputs"] == inputs
        since = before["since"] if before and same else cut_at
        waits, told = s.attribution.settle_seconds, before["cut_at"] if before else 0.0
        if before and s.rewards.implicit.worth():
            # That nothing followed a turn is known once its window has passed, and the log is complete up to there.
            waits, told = waits + s.attribution.window_seconds, min(told, before["watermark"])
        if before and same and told > since + waits:
            # An earlier look at the same events found all of them settled. None can have become ready, and the join
            # reads the whole lake.
            return {**before, "landed": landed, "watermark": landed["watermark"]}
        attributed = self._ingest(
            "ingest.attribution:attribute",
            lake=h.lake,
            policy=self._policy,
            settings=s.attribution,
            rewards=s.rewards,
            now=cut_at,
            watermark=landed["watermark"],
            used_datasets=h.datasets,
            scratch=h.run,
        )
        looked = {"cut_at": cut_at, "since": since, "inputs": inputs, "landed": landed}
        return {**looked, **attributed, "watermark": landed["watermark"]}

    def freeze(self, run: Run, landed: dict) -> dict:
        """The candidate dataset, as of the cut."""
        s = self._settings
        return self._ingest(
            "ingest.freeze:freeze",
            lake=self._home.lake,
            datasets=self._home.datasets,
            policy=self._policy,
            dataset_id=run.dataset_id,
            settings=s.dataset,
            attribution=s.attribution,
            rewards=s.rewards,
            now=landed["cut_at"],
            watermark=landed["watermark"],
        )

    def gate(self, run: Run) -> dict:
        """The dataset's expectations; a dataset that fails them ends the run."""
        try:
            manifest = self._ingest(
                "ingest.gate:gate",
                datasets=self._home.datasets,
                lake=self._home.lake,
                policy=self._policy,
                dataset_id=run.dataset_id,
                settings=self._settings.gate,
                suites=self._home.suites(self._settings.gate.suites),
                docs=self._home.docs,
            )
        except StageFailed as failed:
            if failed.kind == "GateFailed":
                checks = "; ".join(f"{c['name']}: saw {c['observed']}" for c in failed.details["checks"])
                rows = f"`everloop dataset show {run.dataset_id}` names the rows"
                raise Ended(
                    Outcome.GATE_FAILED, f"dataset {run.dataset_id} is not fit to train on: {checks}; {rows}"
                ) from failed
            raise
        return {"statistics": manifest["statistics"], "rows": len(manifest["pairs"])}

    def lineage(self, run: Run) -> dict:
        """Where training continues from, given what became of the runs before."""
        champion = self._champion()
        try:
            self._wait_served(champion, FLEET_SECONDS)
        except StageFailed as failed:
            raise PipelineError(f"the champion {champion} is not what the fleet serves: {failed}") from failed
        history = [r for r in self._runs.history(self._policy) if r.run_id != run.run_id]
        found = origin(history, champion, self._settings.evaluation.max_holds)
        return msgspec.to_builtins(found)

    def train(self, run: Run, origin: dict) -> dict:
        """The checkpoint; a monitor that stops training ends the run."""
        h = self._home
        try:
            manifest = self._workers.call(
                "trainer",
                "trainer.stage:train",
                report=Report(h.database, run.run_id, Stage.TRAIN),
                settings=self._settings.trainer,
                policy=self._policy,
                dataset=h.datasets / self._policy / run.dataset_id,
                parent=h.checkpoint(self._policy, origin["parent"]),
                reference=h.checkpoint(self._policy, BASE),
                output=h.checkpoint(self._policy, run.checkpoint_id),
                mlflow=self._addresses.mlflow,
            )
        except StageFailed as failed:
            if failed.kind == "TrainingStopped":
                raise Ended(Outcome.TRAINING_STOPPED, str(failed)) from failed
            raise
        return {key: manifest[key] for key in ("checkpoint_id", "parent", "step", "metrics", "realised_update")}

    def register(self, run: Run) -> dict:
        """The checkpoint as a version of the registry's model."""
        checkpoint = self._home.checkpoint(self._policy, run.checkpoint_id)
        number = self._promotion("promotion.registry:register", mlflow=self._addresses.mlflow, checkpoint=checkpoint)
        return {"model_version": number}

    def evaluate(self, run: Run, origin: dict) -> dict:
        """The verdict: the challenger, loaded cold on an evaluation engine, against the champion that serves."""
        checkpoint = self._home.checkpoint(self._policy, run.checkpoint_id)
        asked: dict[str, Any] = {
            "settings": self._settings.evaluation,
            "policy": self._policy,
            "run_id": run.run_id,
            "champion": origin["champion"],
            "gateway": self._addresses.gateway,
            "key": self._secrets.evaluation_key,
            "output": checkpoint,
            "look": origin["look"],
        }
        if not (checkpoint / "verdict.json").exists():
            if (champion := self._champion()) != origin["champion"]:
                raise Ended(Outcome.HELD, f"{champion} became the champion while this run trained from another")
            self._control.put_under_evaluation(self._policy, run.checkpoint_id, checkpoint / EXPORT)
            self._promotion("evaluation.stage:sample_champion", **asked)  # while the evaluation engine loads
            seconds = self._settings.schedule.engine_seconds
            self._control.wait_evaluation_engine(self._policy, run.checkpoint_id, seconds, self._stop)
        return self._promotion(
            "evaluation.stage:evaluate", **asked, challenger=run.checkpoint_id, holds=origin["holds"]
        )

    def decide(self, run: Run, verdict: dict) -> dict:
        """The verdict onto the registry's version; the alias `champion`, where the verdict is promote."""
        checkpoint = self._home.checkpoint(self._policy, run.checkpoint_id)
        self._promotion("promotion.registry:record_verdict", mlflow=self._addresses.mlflow, checkpoint=checkpoint)
        why = "; ".join(verdict["reasons"])
        outcome = BY_VERDICT[verdict["decision"]]
        if outcome != Outcome.PROMOTED:
            raise Ended(outcome, why)
        standing = rollout.read(checkpoint)
        if standing is not None and standing.state is RolloutState.RETIRED:
            raise Ended(Outcome.REJECTED, f"{run.checkpoint_id} served already, and a person took it back")
        if standing is not None and standing.state is RolloutState.REJECTED:
            raise Ended(Outcome.ROLLED_BACK, f"{run.checkpoint_id} was {standing.reason}")
        champion = self._champion()
        if champion not in (verdict["champion"], run.checkpoint_id):
            raise Ended(Outcome.HELD, f"{champion} became the champion while {verdict['champion']} was compared with")
        promoted_at = self._clock()
        self._promotion(
            "promotion.registry:promote",
            mlflow=self._addresses.mlflow,
            checkpoints=self._home.checkpoints,
            policy=self._policy,
            checkpoint_id=run.checkpoint_id,
        )
        return {
            "promoted": run.checkpoint_id,
            "since": verdict["created_at"],
            "promoted_at": promoted_at,
            "reasons": why,
        }

    def roll_out(self, run: Run, decided: dict) -> dict:
        """Until every engine in service reports the new champion; then the swaps that it took.

        Where they do not, in the time they have, its record says so, and the reconciler puts the alias back.
        """
        checkpoint = self._home.checkpoint(self._policy, run.checkpoint_id)
        try:
            self._wait_served(run.checkpoint_id, self._settings.schedule.rollout_seconds, checkpoint)
        except StageFailed as failed:
            if failed.kind == "TakenBack":
                raise Ended(Outcome.ROLLED_BACK, str(failed)) from failed
            if failed.kind != "NotConverged":
                raise
            standing = rollout.take_back(checkpoint, str(failed), self._clock())
            if standing.state is not RolloutState.SERVING:
                raise Ended(Outcome.ROLLED_BACK, f"{run.checkpoint_id} was {standing.reason}") from failed
        swaps = [
            swap
            for swap in self._control.swaps(self._policy, decided["since"])
            if swap["to_version"] == run.checkpoint_id
        ]
        return {"swaps": swaps, "converged_ms": (self._clock() - decided["promoted_at"]) * 1000}

    def _wait_served(self, version: str, timeout: float, checkpoint: Path | None = None) -> None:
        self._promotion(
            "promotion.reconcile:wait_converged",
            control=self._addresses.control,
            token=self._secrets.control_token,
            policy=self._policy,
            version=version,
            timeout=timeout,
            checkpoint=checkpoint,
        )

    def _champion(self) -> str:
        named = self._promotion("promotion.registry:champion", mlflow=self._addresses.mlflow, policy=self._policy)
        return named or BASE

    def _ingest(self, target: str, **arguments: Any) -> Any:
        return self._workers.call("ingest", target, **arguments)

    def _promotion(self, target: str, **arguments: Any) -> Any:
        return self._workers.call("promotion", target, **arguments)
