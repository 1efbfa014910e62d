"""Forgetting, from the request to the complete receipt: every place of an installation, in order.

    log, lake, datasets, Data Docs (`ingest.forget`) → ids left elsewhere (`pipelines.leftovers`)
    → which checkpoints learned from it (`ingest.trace`), tagged in the registry (`promotion.erasure`)

A look takes each receipt as far as it goes now; the scheduler looks again until it is complete (`ingest.receipts`).
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest
from ingest.receipts import Receipt, Receipts, ReceiptState
from pipelines.by_hand import mlflow_url
from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.leftovers import clean_control, clean_runs, overwrite
from pipelines.records import Stage, StageState
from pipelines.runs import Runs
from pipelines.stack import addresses
from pipelines.workers import Workers


class Forgetting:
    """The receipts of one home folder, and the work on them."""

    def __init__(self, config: Config, home: Home, workers: Workers) -> None:
        self._config, self._home, self._workers = config, home, workers
        self.receipts = Receipts(home.receipts)

    def look(self, patience: float = 0.0) -> list[Receipt]:
        """Takes every unfinished receipt as far as it goes; those receipts. `patience`: seconds to wait for the log.

        What holds one up is written on it, and the next look tries again.
        """
        looked = []
        for receipt in self.receipts.unfinished():
            try:
                if receipt.state is ReceiptState.RETAINED:
                    self._await_retention(receipt)
                else:
                    self._remove(receipt, patience)
            except PipelineError as error:
                self.receipts.note(receipt.receipt_id, waits=str(error))
            looked.append(self.receipts.get(receipt.receipt_id))
        return looked

    def _remove(self, receipt: Receipt, patience: float) -> None:
        h, name = self._home, receipt.receipt_id
        reached = self._ingest(
            "ingest.forget:erase",
            receipts=h.receipts,
            receipt_id=name,
            log=self._log(),
            spool=h.spool,
            lake=h.lake,
            settings=self._config.lake,
            datasets=h.datasets,
            docs=h.docs,
            patience=patience,
        )
        self.receipts.note(name, removed=reached["removed"], waits=reached["waits"])
        if not reached["known"]:
            return
        goal = self.receipts.targets(name)
        ids = clean_runs(h.database, goal) + overwrite(self._texts(), goal)
        self.receipts.note(name, removed={"ids": ids, "opted out": clean_control(h.control, goal)})
        changed = {(policy, dataset) for policy, dataset in reached["datasets"]}
        learned = self._ingest("ingest.trace:learned_from", checkpoints=h.checkpoints, datasets=changed)
        self.receipts.note(name, checkpoints=learned)
        if learned:
            self._workers.call(
                "promotion",
                "promotion.erasure:tag_erased",
                mlflow=mlflow_url(h),
                checkpoints=learned,
                receipt_id=name,
            )
        if (run_id := self._training(changed)) is not None:
            waits = f"run {run_id} is training on rows from before: its checkpoint will have learned from them"
            self.receipts.note(name, waits=waits)
        elif reached["settled"]:
            ends = self._ingest("ingest.forget:topic_bounds", log=self._log())["ends"]
            self.receipts.note(name, kafka_ends=ends)
            self.receipts.move(name, ReceiptState.RETAINED if ends else ReceiptState.COMPLETE)
            if ends:
                self._await_retention(self.receipts.get(name))

    def _await_retention(self, receipt: Receipt) -> None:
        begins = self._ingest("ingest.forget:topic_bounds", log=self._log())["begins"]
        left = sum(int(begins.get(partition, end)) < end for partition, end in receipt.kafka_ends.items())
        if left:
            waits = f"Kafka keeps its records in {left} of {len(receipt.kafka_ends)} partitions until their retention"
            self.receipts.note(receipt.receipt_id, waits=waits)
        else:
            self.receipts.move(receipt.receipt_id, ReceiptState.COMPLETE)

    def _training(self, changed: Collection[tuple[str, str]]) -> str | None:
        """The run that has begun to train on one of these (policy, dataset) before its successor was there."""
        runs = Runs(self._home.database)
        for policy, dataset in sorted(changed):
            run = runs.unfinished(policy)
            stage = run.stage(Stage.TRAIN) if run is not None and run.dataset_id == dataset else None
            if run is not None and stage is not None and stage.state is StageState.RUNNING:
                manifest = read_manifest(self._home.datasets / policy / dataset, DatasetManifest)
                if stage.started_at <= max(succession.at for succession in manifest.erased):
                    return run.run_id
        return None

    def _texts(self) -> Iterator[Path]:
        """Files of text in which an id may stand."""
        h = self._home
        for folder in (h.logs, h.mlflow / "artifacts", h.root / "evaluations", h.root / "simulate"):
            yield from (path for path in folder.rglob("*") if path.is_file())
        yield from h.run.glob("*.json")
        yield from (path for path in h.checkpoints.glob("*/*/*") if path.suffix in (".json", ".jsonl", ".html"))

    def _log(self) -> Any:
        return self._config.log_settings(addresses.load(self._home).kafka)

    def _ingest(self, target: str, **arguments: Any) -> Any:
        return self._workers.call("ingest", target, **arguments)
