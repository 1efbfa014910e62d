"""The gate: a candidate that breaks one expectation stays out, and the reader learns which rows and why.

Great Expectations runs three suites (`ingest.expectations`, as the user changed them) over the frames of
`ingest.frames`: the candidate, the policy's turns in the lake, what was said of them. It writes Data Docs: a page a
policy and table for the suite, a page a dataset and table for its results. Two ways to be stopped, never mixed up:
`GateFailed`, the data is not fit to train on; `GateBroken`, the gate could not be asked (a column is missing, an
expectation raised), so nothing is known.

Invariant: `manifest.json` is written last, under the policy's lock, and only when every check held; no (turn, sample)
is in two datasets that have one. What a candidate failed by is in its `candidate.json`.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ingest import expectations
from ingest.config import GateSettings, LakePlace
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, newest_dataset, used_turns
from ingest.frames import WrongColumns, frames
from ingest.successors import INDEX, PAGES, RESULTS
from ingest.suites import Changes, changed, read_suites

# It asks about analytics when it is imported.
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")

import great_expectations as gx
import pandas as pd
from great_expectations.data_context import FileDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.data_context.types.resource_identifiers import ExpectationSuiteIdentifier

KEPT, KEPT_BESIDE = 50, 10
"""Results of a policy that Data Docs show: of candidates, and of each of the lake's tables. Their index reads all of
them at each gate, 0.03 s each; every accepted dataset's manifest has its checks for good."""

NAMED = 20
"""Rows that are named where a number of the whole did not hold."""


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


def gate(
    *, datasets: Path, lake: LakePlace, policy: str, dataset_id: str, settings: GateSettings, suites: Path, docs: Path
) -> DatasetManifest:
    """Let a candidate pass, or raise. One that passed before is returned as it is.

    `suites` is the user's file (`ingest.suites`), `docs` the folder of Data Docs, shared by all policies. Raises
    `GateFailed`, `GateBroken`, `SuiteError` before anything runs, and `ContractError` where there is no candidate or
    its rows are not the ones that it names.
    """
    folder = datasets / policy / dataset_id
    with _locked(datasets / policy / ".gate.lock"):
        if (folder / MANIFEST).exists():
            return read_manifest(folder, DatasetManifest)
        candidate = read_manifest(folder, DatasetManifest, CANDIDATE)
        last = newest_dataset(datasets, policy)
        changes = read_suites(suites, required=settings.suites is not None)
        whole_suites(policy, settings, changes)
        since = candidate.cut_at - settings.max_age_seconds
        try:
            data = frames(folder, candidate, lake, used_turns(datasets, policy, since), last, since)
        except WrongColumns as error:
            raise GateBroken(policy, dataset_id, str(error)) from error
        asked = whole_suites(policy, settings, changes, last, data.keys, (len(data.turns), len(data.feedback)))
        with _locked(docs / ".lock"):
            checks = _run(docs, candidate, {table: (getattr(data, table), suite) for table, suite in asked.items()})
        failed = tuple(check for check in checks if not check.passed)
        manifest = msgspec.structs.replace(candidate, gate=_of_rows(checks, candidate))
        write_manifest(folder, manifest, CANDIDATE if failed else MANIFEST)
        if failed:
            raise GateFailed(policy, dataset_id, failed)
        return manifest


def whole_suites(
    policy: str,
    settings: GateSettings,
    changes: Mapping[str, Changes],
    last: DatasetManifest | None = None,
    keys: int = 1,
    rows: tuple[int, int] = (1, 1),
) -> dict[str, list[Any]]:
    """The expectations by table, in the order in which they are asked. Raises `SuiteError`."""
    built_in = {
        "candidate": expectations.candidate(policy, settings, last, keys),
        "turns": expectations.turns(settings, rows[0]),
        "feedback": expectations.feedback(settings, keys, rows[1]),
    }
    others = {"candidate": expectations.LIKE_THE_LAST}
    return {
        table: changed(table, suite, changes.get(table, Changes()), others.get(table, expectations.OF_SOME))
        for table, suite in built_in.items()
    }


def _of_rows(checks: list[GateCheck], candidate: DatasetManifest) -> tuple[GateCheck, ...]:
    """The checks as they are kept with the dataset: of turns that are no row of it, an erasure would not look here."""
    rows = {turn_id for turn_id, _, _ in candidate.pairs}
    return tuple(
        msgspec.structs.replace(check, rows=tuple(name for name in check.rows if name in rows)) for check in checks
    )


def index_of(docs: Path) -> Path:
    """The first page of Data Docs; it exists once a gate ran."""
    return docs / INDEX


def write_index(docs: Path) -> None:
    """Makes the first page anew: an erasure took pages that it linked (`ingest.successors`)."""
    with _locked(docs / ".lock"):
        context = _context(docs)
        suites = [ExpectationSuiteIdentifier(name=suite.name) for suite in context.suites.all()]
        context.build_data_docs(resource_identifiers=suites[:1])  # without a name it would make all pages


def _run(docs: Path, candidate: DatasetManifest, asked: Mapping[str, tuple[Any, list[Any]]]) -> list[GateCheck]:
    """Run the suite of each table over its frame, write Data Docs, and give each expectation's result as a check."""
    context = _context(docs)
    checks: list[GateCheck] = []
    pages: list[Any] = []
    for table, (data, suite) in asked.items():
        name = _page(candidate.policy, table)
        _forget_oldest(docs, name, KEPT if table == "candidate" else KEPT_BESIDE)
        try:
            page, validation = _validate(context, name, candidate, data, suite)
        except (TypeError, ValueError, gx.exceptions.GreatExpectationsError) as error:
            # Some results of its own cannot be written: numpy's, of ExpectColumnQuantileValuesToBeBetween.
            detail = f"Great Expectations could not run the suite of {table}: {error}"
            raise GateBroken(candidate.policy, candidate.dataset_id, detail) from error
        pages += [page, ExpectationSuiteIdentifier(name=name)]
        outcomes = {outcome.expectation_config.meta["name"]: outcome for outcome in validation.results}
        ordered = (outcomes[expectation.meta["name"]] for expectation in suite)
        checks += [_check(outcome, candidate, table, data) for outcome in ordered]
    context.build_data_docs(resource_identifiers=pages)  # once: their index reads every result that is kept
    return checks


def _validate(
    context: FileDataContext, name: str, candidate: DatasetManifest, data: Any, suite: list[Any]
) -> tuple[Any, Any]:
    """Run one suite; the identifier of its result, and the result, which is stored."""
    batch = (
        context.data_sources.add_or_update_pandas(name)
        .add_dataframe_asset("rows")
        .add_batch_definition_whole_dataframe("all rows")
    )
    stored = context.suites.add_or_update(gx.ExpectationSuite(name=name, expectations=suite))
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=name, data=batch, suite=stored)
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["turn_id", "sample"]},
        )
    )
    frozen_at = datetime.fromtimestamp(candidate.created_at, UTC)
    run_id = gx.RunIdentifier(run_name=candidate.dataset_id, run_time=frozen_at)
    result = checkpoint.run(batch_parameters={"dataframe": data}, run_id=run_id)
    ((page, validation),) = result.run_results.items()
    return page, validation


def _page(policy: str, table: str) -> str:
    """The name of a suite in Data Docs; a policy's name has no space."""
    return policy if table == "candidate" else f"{policy} {table}"


def _forget_oldest(docs: Path, suite: str, kept: int) -> None:
    """Makes room for one more result among the suite's `kept`. Their folders are named by dataset and time."""
    for results in (docs / RESULTS, docs / PAGES):
        for run in sorted(results.glob(f"{suite}/*/*"), key=lambda path: path.name)[: -(kept - 1)]:
            shutil.rmtree(run.parent)


def _check(outcome: Any, candidate: DatasetManifest, table: str, data: Any) -> GateCheck:
    name = outcome.expectation_config.meta["name"]
    name = name if table == "candidate" else f"{table}: {name}"
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
    if "unexpected_index_list" in seen or outcome.success:
        named = [row["turn_id"] for row in seen.get("unexpected_index_list") or ()]
    else:
        named = deviating(data, outcome.expectation_config.kwargs, seen)
    return GateCheck(name=name, passed=bool(outcome.success), observed=observed, rows=tuple(dict.fromkeys(named)))


def deviating(data: "pd.DataFrame", arguments: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """Turn ids of the rows for which an expectation of the whole frame, or of a whole column, did not hold.

    Of a column's number the `NAMED` rows that deviate most, towards the side that was seen; of its distinct values all
    rows that have them; else the first `NAMED`.
    """
    column = arguments.get("column")
    if column not in data:
        return data["turn_id"].head(NAMED).tolist()
    values, observed = data[column], seen.get("observed_value")
    if seen.get("partial_unexpected_list"):
        return data.loc[values.isin(seen["partial_unexpected_list"]), "turn_id"].tolist()
    if values.nunique() <= 1:
        return data["turn_id"].tolist()
    if not pd.api.types.is_numeric_dtype(values):
        return data["turn_id"].head(NAMED).tolist()
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if isinstance(observed, int | float) and low is not None and observed < low:
        order = values
    elif isinstance(observed, int | float) and high is not None and observed > high:
        order = -values
    else:
        order = -(values - values.median()).abs()
    return data.loc[order.sort_values(kind="stable").index[:NAMED], "turn_id"].tolist()


@lru_cache(maxsize=8)
def _context(docs: Path) -> FileDataContext:
    """The Great Expectations project below `docs`: made once, then kept for the life of the worker."""
    context = gx.get_context(mode="file", project_root_dir=docs)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    site: Any = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": f"../{INDEX.parent}/"},
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
