"""The gate: a candidate that breaks one expectation stays out, and the reader learns which rows and why.

Great Expectations runs the suite of `ingest.expectations` and writes Data Docs: a page a policy for the suite, a page a
dataset for its results. Two ways to be stopped, never mixed up: `GateFailed`, the data is not fit to
train on; `GateBroken`, the gate could not be asked (a column is missing, an expectation raised), so nothing is known.

Invariant: `manifest.json` is written last, under the policy's lock, and only when every check held; no (turn, sample)
is in two datasets that have one.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS, list_datasets, read_rows, used_turns
from ingest.expectations import expectations, frame

# It asks about analytics when it is imported.
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")

import great_expectations as gx
from great_expectations.data_context import FileDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig

SITE = "site"
KEPT = 50
"""Results of a policy that Data Docs show. Their index reads all of them at each gate, 0.03 s each; every accepted
dataset's manifest has its checks for good."""


class GateError(Exception):
    """A candidate did not pass its gate."""


class GateFailed(GateError):
    """The data is not fit to train on. `checks` are the ones that did not hold, each with its rows."""

    def __init__(self, policy: str, dataset_id: str, checks: tuple[GateCheck, ...]) -> None:
        super().__init__(policy, dataset_id, checks)
        self.policy, self.dataset_id, self.checks = policy, dataset_id, checks

    def __str__(self) -> str:
        lines = [f"dataset {self.dataset_id} of {self.policy} failed its gate and stays out of training:"]
        for check in self.checks:
            turns = f"; turns: {', '.join(check.rows[:5])}" if check.rows else ""
            more = f" and {len(check.rows) - 5} more" if len(check.rows) > 5 else ""
            lines.append(f"- {check.name}: saw {check.observed}{turns}{more}")
        return "\n".join(lines)


class GateBroken(GateError):
    """The gate could not be asked; the candidate is neither passed nor failed."""

    def __init__(self, policy: str, dataset_id: str, detail: str) -> None:
        super().__init__(policy, dataset_id, detail)
        self.policy, self.dataset_id, self.detail = policy, dataset_id, detail

    def __str__(self) -> str:
        return f"the gate of dataset {self.dataset_id} of {self.policy} is broken: {self.detail}"


def gate(*, datasets: Path, policy: str, dataset_id: str, settings: GateSettings, docs: Path) -> DatasetManifest:
    """Let a candidate pass, or raise. One that passed before is returned as it is.

    `docs` is the folder of Data Docs, shared by all policies. Raises `GateFailed`, `GateBroken`, and `ContractError`
    where there is no candidate or its rows are not the ones that it names.
    """
    folder = datasets / policy / dataset_id
    with _locked(datasets / policy / ".gate.lock"):
        if (folder / MANIFEST).exists():
            return read_manifest(folder, DatasetManifest)
        candidate = read_manifest(folder, DatasetManifest, CANDIDATE)
        rows = read_rows(folder, CANDIDATE)
        _same_columns(rows, candidate)
        with _locked(docs / ".lock"):
            _forget_oldest(docs, policy)
            checks = _run(
                docs,
                candidate,
                frame(rows, candidate, used_turns(datasets, policy)),
                expectations(policy, settings, next(iter(reversed(list_datasets(datasets, policy))), None)),
            )
        failed = tuple(check for check in checks if not check.passed)
        if failed:
            raise GateFailed(policy, dataset_id, failed)
        manifest = msgspec.structs.replace(candidate, gate=checks)
        write_manifest(folder, manifest)
        return manifest


def index_of(docs: Path) -> Path:
    """The first page of Data Docs; it exists once a gate ran."""
    return docs / SITE / "index.html"


def _same_columns(rows: pa.Table, candidate: DatasetManifest) -> None:
    missing = [name for name in ROWS.names if name not in rows.column_names]
    changed = [f.name for f in ROWS if f.name not in missing and rows.schema.field(f.name).type != f.type]
    for names, what in ((missing, "has no column"), (changed, "has another type in column")):
        if names:
            raise GateBroken(
                candidate.policy, candidate.dataset_id, f"{candidate.rows.path} {what} {', '.join(names)}; freeze again"
            )


def _run(docs: Path, candidate: DatasetManifest, data: Any, suite: Sequence[Any]) -> tuple[GateCheck, ...]:
    """Run the suite over the frame, write Data Docs, and give each expectation's result as a check."""
    context, name = _context(docs), candidate.policy
    batch = (
        context.data_sources.add_or_update_pandas(name)
        .add_dataframe_asset("candidates")
        .add_batch_definition_whole_dataframe("all rows")
    )
    stored = context.suites.add_or_update(gx.ExpectationSuite(name=name, expectations=list(suite)))
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=name, data=batch, suite=stored)
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="data docs")],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["turn_id", "sample"]},
        )
    )
    frozen_at = datetime.fromtimestamp(candidate.created_at, UTC)
    result = checkpoint.run(
        batch_parameters={"dataframe": data},
        run_id=gx.RunIdentifier(run_name=candidate.dataset_id, run_time=frozen_at),
    )
    (validation,) = result.run_results.values()
    checks = tuple(_check(outcome, candidate) for outcome in validation.results)
    order = [expectation.meta["name"] for expectation in suite]
    return tuple(sorted(checks, key=lambda check: order.index(check.name)))


def _forget_oldest(docs: Path, policy: str) -> None:
    """Makes room for one more result among the policy's `KEPT`. Their folders are named by dataset and time."""
    for results in (docs / "gx" / "uncommitted" / "validations", docs / SITE / "validations"):
        for run in sorted(results.glob(f"{policy}/*/*"), key=lambda path: path.name)[: -(KEPT - 1)]:
            shutil.rmtree(run.parent)


def _check(outcome: Any, candidate: DatasetManifest) -> GateCheck:
    name = outcome.expectation_config.meta["name"]
    info = outcome.exception_info or {}
    for raised in (info, *(value for value in info.values() if isinstance(value, dict))):
        if raised.get("raised_exception"):
            detail = f'"{name}" raised: {raised.get("exception_message")}'
            raise GateBroken(candidate.policy, candidate.dataset_id, detail)
    seen = outcome.result
    if "observed_value" in seen:
        observed = str(seen["observed_value"])
    else:
        observed = f"{seen.get('unexpected_count', 0)} of {seen.get('element_count', 0)} rows"
    rows = tuple(dict.fromkeys(str(row["turn_id"]) for row in seen.get("unexpected_index_list") or ()))
    return GateCheck(name=name, passed=bool(outcome.success), observed=observed, rows=rows)


@lru_cache(maxsize=8)
def _context(docs: Path) -> FileDataContext:
    """The Great Expectations project below `docs`: made once, then kept for the life of the worker."""
    context = gx.get_context(mode="file", project_root_dir=docs)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    site: Any = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": f"../{SITE}/"},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    context.update_data_docs_site("local_site", site)
    return context


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
