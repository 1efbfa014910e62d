"""Attribution: each turn of a policy has exactly one current state, whatever the order in which events landed.

A windowed join in SQL over the lake's turns, feedback and erasures: `sql/turns.sql`, then `sql/implicit.sql` (what the
traffic itself tells, see `ingest.implicit`), then `sql/attribution.sql`. It runs on DuckDB, or as it is on Spark
(`ingest.spark_join`); the few functions whose names differ are in `sql/functions.sql` and `sql/spark_functions.sql`.

**A signal counts** for a turn when it names the turn (or its session, by name or by any turn of it: then for every turn
of the session that had begun when it was received, undivided; by a turn, of the same key and subject, and of a session
that nobody named those turns only that the turn went on from, or that went on from it), its sender's key made the turn
or is trusted, it names no other user than the turn's (unless its key is trusted), and it was received at most
`window_seconds` after the turn's end; before the turn's own arrival is as good as after. Of events with the same
(key, feedback id) the first received counts; one that says something else is **conflicting**, and the report tells how
many are. Of counted signals with the same source and target that answer the same question (accept and reject are
answers to one, every other kind is its own) the last received counts, the others are revised. An implicit signal is one
of its turn, in the turn's own name; it counts where its rule has a number. A turn's **feedback revision** is the number
of signals that counted or were revised: it only grows.

**States**, the first that holds:

- `censored`: nobody could judge the answer, or it must not be used: it was aborted or failed, it was sampled for an
  evaluation, its key opted out of training, or its subject or session was erased;
- `superseded`: no signal about the turn itself counted, and its subject sent the identical prompt again in the same
  session, within `retry_seconds` after its end;
- `settled`: a signal counted, and the last one is `settle_seconds` old;
- `silent`: no signal counted, and the window and the watermark of the log have passed: none will;
- `open`: the rest.

**What is looked at**: turns that ended after `since(cut)`. Before it no turn can become ready, or change its state by
anything but an erasure; the lake may grow, a look does not. `history_seconds` moves it back, for rates and baselines.

A turn that is not trainable (greedy, constrained, no record) has a state like any other; it is never **ready**. Ready
is settled, trainable, in no accepted dataset yet, and fresh (`fresh_seconds`, `fresh_versions`).

Invariant: the result depends on the events, the cut and the watermark, and on nothing else.
"""

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ingest.config import AttributionSettings, LakePlace, RewardSettings
from ingest.datasets import used_turns
from ingest.implicit import Classifier, identify, register
from ingest.lake import ERASURES, FEEDBACK, TURNS, open_table, read
from ingest.statements import statements

logger = logging.getLogger(__name__)
STATES = ("open", "settled", "silent", "censored", "superseded")

_SCRIPTS = ("functions.sql", "turns.sql", "implicit.sql", "attribution.sql")
_CONFLICTING = "SELECT count(DISTINCT feedback_id) FROM signal WHERE status = 'conflicting'"
_TABLES = (TURNS, FEEDBACK, ERASURES)
TURN_COLUMNS = (
    *("turn_id", "sample", "policy", "dialect", "key_id", "subject", "session_id", "prefix_hashes", "weight_versions"),
    *("finish", "arm", "started_at", "finished_at", "answer", "trainable", "untrainable_reason", "prompt_digest"),
    *("output_tokens", "answer_hash", "parent_hash", "metadata", "calls", "tail_said", "tail_failed", "tail_results"),
    *("spool_id", "sequence"),
)
"""What the SQL reads of the lake's turns."""
Rows: TypeAlias = pa.Table | pyarrow.dataset.Dataset | tuple[str, ...]
"""A table's, or the Parquet files that hold them."""
_MOMENT = 1e-6
"""Seconds: where a retry's time begins, and what it is at least."""
_MEMORY = "2GiB"
"""DuckDB's own; what it cannot hold goes to the scratch folder."""


@dataclass(frozen=True)
class Cut:
    """Nothing received after `at` counts. The log is complete up to `watermark`. `lake_versions` pins Delta versions
    of tables by name; a table that it does not name is read as it stands now."""

    at: float
    watermark: float
    lake_versions: dict[str, int] = field(default_factory=dict)

    def since(self, settings: AttributionSettings) -> float:
        """The end of the oldest turn that is looked at, Unix seconds."""
        final = min(self.at, self.watermark) - settings.window_seconds - settings.settle_seconds
        return min(self.at - settings.fresh_seconds, final) - settings.history_seconds


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Of the turns that users saw (neither censored nor superseded): how many got a signal that counted, and how
    many of those a reward above 0. `open` ones may still get theirs."""

    arm: str
    version: str
    segment: str
    turns: int
    open: int
    answered: int
    positive: int


class AgeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The same turns by how much of its window each has had: `age` is the quarters that have passed, 4 is all of it."""

    arm: str
    segment: str
    age: int
    turns: int
    answered: int


class RuleRate(msgspec.Struct, frozen=True, kw_only=True):
    """Of `turns` (all that may be looked at): how many have the implicit signal, whatever it is worth. Of those, how
    many users also judged outright, and how many of them accepted: what the rule's guesses are worth."""

    rule: str
    arm: str
    version: str
    segment: str
    turns: int
    signals: int
    answered: int
    positive: int


class AttributionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Turns of the policy by state; how many are ready for a dataset; who answers, and how; what the traffic tells."""

    policy: str
    counts: dict[str, int]
    ready: int
    conflicting: int
    """Feedback ids that came again with other content, which does not count: idempotency keys that were used twice."""
    rates: tuple[Rate, ...]
    ages: tuple[AgeRate, ...]
    implicit: tuple[RuleRate, ...]
    classifier: Classifier
    """Which one told `dissatisfied`."""


def attribute(
    *,
    lake: LakePlace,
    policy: str,
    settings: AttributionSettings,
    rewards: RewardSettings,
    now: float,
    watermark: float,
    used_datasets: Path,
    scratch: Path | None = None,
) -> AttributionReport:
    """The states of the policy's turns at `now` (Unix seconds, as `watermark`). `used_datasets` is the folder of all
    datasets, `scratch` one for what memory cannot hold (default: the system's for temporary files)."""
    cut = Cut(now, watermark)
    used = used_turns(used_datasets, policy, cut.since(settings))
    with attributed(lake, policy, settings, rewards, cut, used, scratch) as join:
        (ready,) = join.execute("SELECT count(*) FROM attributed WHERE ready").fetchone() or (0,)
        (conflicting,) = join.execute(_CONFLICTING).fetchone() or (0,)
        if conflicting:
            logger.warning(
                "feedback of %d idempotency keys came again with other content: the first counts", conflicting
            )
        return AttributionReport(
            policy=policy,
            counts=state_counts(join),
            ready=ready,
            conflicting=conflicting,
            rates=response_rates(join),
            ages=age_rates(join),
            implicit=rule_rates(join),
            classifier=identify(rewards.implicit),
        )


@contextmanager
def attributed(
    lake: LakePlace,
    policy: str,
    settings: AttributionSettings,
    rewards: RewardSettings,
    cut: Cut,
    used: Iterable[tuple[str, int]],
    scratch: Path | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """`joined` over the tables of the lake, by the configured engine."""
    if settings.engine == "duckdb":
        since = cut.since(settings)
        young = {
            TURNS: pc.field("finished_at") >= since,
            FEEDBACK: pc.field("received_at") >= since - settings.window_seconds,
        }
        tables = {
            table: _young(read(lake, table, cut.lake_versions.get(table)), young.get(table, pc.scalar(True)))
            for table in _TABLES
        }
        with joined(tables, policy, settings, rewards, cut, used, scratch) as join:
            yield join
        return
    from ingest.spark_join import RESULTS, join_on_spark

    given = _given(settings, rewards, used)
    versions = {**lake_versions(lake), **cut.lake_versions}
    with _connection({}, scratch) as (join, folder):
        parameters = _parameters(policy, settings, rewards, cut)
        join_on_spark(lake, versions, parameters, given, rewards, settings.spark, folder)
        for name in RESULTS:
            files = str(folder / name / "*.parquet")
            join.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM read_parquet($files)", {"files": files})
        yield join


@contextmanager
def joined(
    tables: Mapping[str, Rows],
    policy: str,
    settings: AttributionSettings,
    rewards: RewardSettings,
    cut: Cut,
    used: Iterable[tuple[str, int]],
    scratch: Path | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection with the tables `attributed` (a row a turn), `signal` (a row a signal and turn),
    `implicit` (those of the signals that were computed), `turn` (its turns, as read), `version_age`, and the lake's
    `lake_turns`, `lake_feedback`, `lake_erasures`. `used` are (turn id, sample) of accepted datasets."""
    parameters = _parameters(policy, settings, rewards, cut)
    given = {f"lake_{table}": tables[table] for table in _TABLES} | _given(settings, rewards, used)
    with _connection(given, scratch) as (join, _):
        register(join, rewards.implicit)
        for script in _SCRIPTS:
            for statement, named in statements(script, parameters):
                join.execute(statement, named)
        yield join


@contextmanager
def _connection(tables: Mapping[str, Rows], scratch: Path | None) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """DuckDB with the tables, and a folder that lives as long."""
    with tempfile.TemporaryDirectory(prefix="join-", dir=scratch) as folder, duckdb.connect() as join:
        join.execute("SET memory_limit = $memory", {"memory": _MEMORY})
        join.execute("SET temp_directory = $folder", {"folder": folder})
        join.execute("SET preserve_insertion_order = false")
        for name, rows in tables.items():
            if isinstance(rows, tuple):
                join.read_parquet(list(rows)).create_view(name)
            else:
                join.register(name, rows)
        yield join, Path(folder)


def _young(rows: pyarrow.dataset.FileSystemDataset, young: pc.Expression) -> Rows:
    """The files of a table that may hold such rows, by the statistics in Delta's log: DuckDB reads them for a third of
    what Arrow's reading costs it. Files in a store are left to Arrow, and so is a table without any."""
    names = [fragment.path for fragment in rows.get_fragments(young)]
    store = rows.filesystem
    if not names or not isinstance(store, SubTreeFileSystem) or not isinstance(store.base_fs, LocalFileSystem):
        return rows.filter(young)
    return tuple(f"{store.base_path}/{name}" for name in names)


def _parameters(policy: str, settings: AttributionSettings, rewards: RewardSettings, cut: Cut) -> dict[str, Any]:
    """Those of the SQL, by name."""
    rule, _, name = rewards.segment.partition(":")
    return {
        "policy": policy,
        "cut": cut.at,
        "since": cut.since(settings),
        "watermark": cut.watermark,
        "window": settings.window_seconds,
        "settle": settings.settle_seconds,
        "retry": max(settings.retry_seconds, _MOMENT),
        "fresh_seconds": settings.fresh_seconds,
        "fresh_versions": settings.fresh_versions,
        "segment_rule": rule,
        "segment_path": f"$.{name}" if name else "$",
        **rewards.model_dump(exclude={"version", "segment", "implicit", "weights"}),
    }


def _given(
    settings: AttributionSettings, rewards: RewardSettings, used: Iterable[tuple[str, int]]
) -> dict[str, pa.Table]:
    """The small tables that the SQL reads beside the lake's, by name."""
    pairs, worth = list(used), rewards.implicit.worth()
    turn_ids, samples = pa.array([t for t, _ in pairs], pa.string()), pa.array([s for _, s in pairs], pa.int32())
    rules, numbers = pa.array(worth.keys(), pa.string()), pa.array(worth.values(), pa.float64())
    return {
        "trusted": pa.table({"key_id": pa.array(settings.trusted_keys, pa.string())}),
        "used": pa.table({"turn_id": turn_ids, "sample": samples}),
        "implicit_worth": pa.table({"rule": rules, "worth": numbers}),
    }


def lake_versions(lake: LakePlace) -> dict[str, int]:
    """The Delta version of each table that the join reads, by name."""
    return {table: open_table(lake, table).version() for table in _TABLES}


def state_counts(join: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Turns by state; every state has its line."""
    seen = dict(join.execute("SELECT state, count(*) FROM attributed GROUP BY state").fetchall())
    return {state: seen.get(state, 0) for state in STATES}


def response_rates(join: duckdb.DuckDBPyConnection) -> tuple[Rate, ...]:
    """Response rates by arm, weight version and segment."""
    rows = join.execute(
        """
        SELECT
            arm, version, segment, count(*),
            sum(CASE WHEN state = 'open' THEN 1 ELSE 0 END),
            sum(CASE WHEN revision > 0 THEN 1 ELSE 0 END),
            sum(CASE WHEN reward > 0 THEN 1 ELSE 0 END)
        FROM attributed WHERE state NOT IN ('censored', 'superseded')
        GROUP BY arm, version, segment ORDER BY arm, version, segment
        """
    ).fetchall()
    return tuple(Rate(**dict(zip(Rate.__struct_fields__, row, strict=True))) for row in rows)


def age_rates(join: duckdb.DuckDBPyConnection) -> tuple[AgeRate, ...]:
    """Response rates by arm, segment and age."""
    rows = join.execute(
        """
        SELECT arm, segment, age, count(*), sum(CASE WHEN revision > 0 THEN 1 ELSE 0 END)
        FROM attributed WHERE state NOT IN ('censored', 'superseded')
        GROUP BY arm, segment, age ORDER BY arm, segment, age
        """
    ).fetchall()
    return tuple(AgeRate(**dict(zip(AgeRate.__struct_fields__, row, strict=True))) for row in rows)


def rule_rates(join: duckdb.DuckDBPyConnection) -> tuple[RuleRate, ...]:
    """Rates of implicit signals by rule, arm, weight version and segment; rules without a signal have no line."""
    rows = join.execute(
        """
        WITH cell AS (
            SELECT arm, version, segment, count(*) AS turns FROM turn WHERE NOT unread GROUP BY arm, version, segment
        ),
        outright AS (
            SELECT turn_id, sample, sum(contribution) AS total FROM signal
            WHERE status = 'counted' AND kind NOT IN (SELECT rule FROM implicit)
            GROUP BY turn_id, sample
        )
        SELECT
            i.rule, t.arm, t.version, t.segment, max(c.turns), count(*), count(o.total),
            sum(CASE WHEN o.total > 0 THEN 1 ELSE 0 END)
        FROM implicit i
        JOIN turn t ON i.turn_id = t.turn_id AND i.sample = t.sample
        JOIN cell c ON t.arm = c.arm AND t.version = c.version AND t.segment = c.segment
        LEFT JOIN outright o ON i.turn_id = o.turn_id AND i.sample = o.sample
        GROUP BY i.rule, t.arm, t.version, t.segment ORDER BY i.rule, t.arm, t.version, t.segment
        """
    ).fetchall()
    return tuple(RuleRate(**dict(zip(RuleRate.__struct_fields__, row, strict=True))) for row in rows)
