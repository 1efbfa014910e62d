"""Forgetting, from the request to the complete receipt: every place of an installation, in order.

    log, lake, datasets, Data Docs (`ingest.forget`) → questions of suites, then all again for the turns in which
    evaluations asked them (`evaluation.erasure`)
    → ids left elsewhere (`pipelines.leftovers`) → which checkpoints learned from it (`ingest.trace`), tagged in the
    registry (`promotion.erasure`)

A look takes each receipt as far as it goes now; the scheduler looks again until it is complete (`ingest.receipts`).
"""

import fcntl
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ingest.contracts.erasure import erasure_digest
from ingest.contracts.ids import keyed_hash
from ingest.contracts.reading import has_reader
from ingest.kafka_retention import Retention
from ingest.receipts import Receipt, Receipts, ReceiptState
from pipelines.by_hand import mlflow_url
from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.leftovers import Digests, clean_control, clean_runs, mentions, overwrite
from pipelines.records import Stage
from pipelines.runs import Runs
from pipelines.stack import addresses, secrets
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
        with (self._home.run / "forget.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one look at a time: the scheduler's, or a person's
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
            scratch=h.run,
            patience=patience,
        )
        self.receipts.note(name, removed=reached["removed"], waits=reached["waits"])
        if not reached["known"]:
            return
        goal = self.receipts.targets(name)
        changed = {(policy, dataset) for policy, dataset in reached["datasets"]}
        holds = self._holds(changed)
        questions, asked = self._questions(name, goal)  # before ids are crossed out in what was sampled with them
        ids = clean_runs(h.database, goal) + overwrite(self._texts(), goal)
        self.receipts.note(
            name, removed={"ids": ids, "questions": questions, "opted out": clean_control(h.control, goal)}
        )
        if asked:  # what asked them is to be removed as well
            self._remove(receipt, patience)
            return
        told: list[str] | None = None
        while (learned := self._learned(changed)) != told:  # again once all are tagged: see `register` of the registry
            self.receipts.note(name, checkpoints=learned)
            if learned:
                self._workers.call(
                    "promotion",
                    "promotion.erasure:tag_erased",
                    mlflow=mlflow_url(h),
                    checkpoints=learned,
                    receipt_id=name,
                )
            told = learned
        if holds:
            self.receipts.note(name, waits=holds)
        elif reached["settled"]:
            ends = self._retention().ends
            self.receipts.note(name, kafka_ends=ends)
            self.receipts.move(name, ReceiptState.RETAINED if ends else ReceiptState.COMPLETE)
            if ends:
                self._await_retention(self.receipts.get(name))

    def _questions(self, receipt_id: str, goal: Digests) -> tuple[int, int]:
        """Those of the suites that are of somebody in `goal`, removed; how many there were, and how many sessions that
        asked them are targets of the receipt since."""
        h = self._home
        every = {policy.evaluation.suite for policy in self._config.policies.values()}
        suites = sorted(path for path in every if path.exists() and mentions(path, goal))
        if not suites:  # else the worker is waited for, which may be evaluating
            return 0, 0
        secret = bytes.fromhex(secrets.load_or_create(h.run / "secrets.json").hash_secret)
        names = self._workers.call("promotion", "evaluation.erasure:asked_in", suites=suites, goal=goal)
        sessions = [("session", erasure_digest("session", keyed_hash(secret, "session", name))) for name in names]
        asked = self.receipts.add_targets(receipt_id, sessions)
        folders = [h.checkpoints, h.evaluations, h.mlflow / "artifacts"]
        removed = self._workers.call(
            "promotion", "evaluation.erasure:erase_questions", suites=suites, folders=folders, goal=goal
        )
        return removed, asked

    def _holds(self, changed: Collection[tuple[str, str]]) -> str:
        """What may still come of the rows that these (policy, dataset) had before; empty where nothing may.

        To be asked before checkpoints are looked for and ids crossed out: who is done by now has left its checkpoint,
        and who failed has said of which turn.
        """
        runs = Runs(self._home.database)
        for policy, dataset in sorted(changed):
            if has_reader(self._home.datasets / policy / dataset):
                return f"dataset {dataset} is being trained on: of a training from before, the checkpoint is to be told"
            run = runs.unfinished(policy)
            if run is None or run.dataset_id != dataset or run.result(Stage.REGISTER) is not None:
                continue
            if (self._home.checkpoint(policy, run.checkpoint_id) / "manifest.json").exists():
                return f"run {run.run_id} is to register its checkpoint: then it is tagged"
        return ""

    def _learned(self, changed: Collection[tuple[str, str]]) -> list[str]:
        return self._ingest("ingest.trace:learned_from", checkpoints=self._home.checkpoints, datasets=changed)

    def _await_retention(self, receipt: Receipt) -> None:
        found, name = self._retention(), receipt.receipt_id
        if not found.begins:
            waits = "Kafka does not show the topic's partitions any more: see `[log] topic`, and what its user may read"
            self.receipts.note(name, waits=waits)
            return
        left = sum(found.begins.get(partition, end) < end for partition, end in receipt.kafka_ends.items())
        if left:
            of = f"{left} of {len(receipt.kafka_ends)} partitions"
            self.receipts.note(name, waits=f"Kafka keeps its records in {of} {_until(found, receipt)}")
        elif time.time() < self.receipts.passed(name) + found.file_seconds:
            self.receipts.note(name, waits=f"Kafka removes its files within {found.file_seconds:g} seconds")
        else:
            # Once more: what a lander elsewhere was writing when it was refused for this erasure lies about still.
            h, settings = self._home, self._config.lake
            self._ingest("ingest.upkeep:upkeep", lake=h.lake, settings=settings, now=time.time(), erase=True)
            self.receipts.move(name, ReceiptState.COMPLETE)

    def _texts(self) -> Iterator[Path]:
        """Files of text in which an id may stand."""
        h = self._home
        for folder in (h.logs, h.mlflow / "artifacts", h.evaluations, h.simulate):
            yield from (path for path in folder.rglob("*") if path.is_file())
        yield from (path for path in h.run.iterdir() if ".json" in path.suffixes)  # also what a crash left half written
        yield from (path for path in h.checkpoints.glob("*/*/*") if path.suffix in (".json", ".jsonl", ".html"))

    def _retention(self) -> Retention:
        found = self._ingest("ingest.kafka_retention:retention_of", log=self._log())
        return msgspec.convert(found, Retention, strict=False)  # partitions are texts where they were JSON

    def _log(self) -> Any:
        return self._config.log_settings(addresses.load(self._home).kafka)

    def _ingest(self, target: str, **arguments: Any) -> Any:
        return self._workers.call("ingest", target, **arguments)


def _until(retention: Retention, receipt: Receipt) -> str:
    """Until when a record may stay that had come when the receipt began to wait."""
    if retention.retention_seconds is None:
        return "for ever: set `retention.ms` of its topic"
    segment, kept = retention.segment_seconds, retention.retention_seconds
    last = datetime.fromtimestamp((receipt.retained_at or receipt.updated_at) + segment + kept, UTC)
    return (
        f"until {last:%Y-%m-%d %H:%M} UTC at the latest: a segment takes records for {segment / 86400:.3g} days "
        f"(segment.ms, less where segment.bytes comes first), and stays for {kept / 86400:.3g} days (retention.ms)"
    )
