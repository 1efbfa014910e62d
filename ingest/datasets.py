"""Datasets: what a trainer reads, how it is frozen, and which turns were used up.

`datasets/<policy>/<dataset_id>/` holds `rows.parquet` (one row a (turn, sample, feedback revision), columns `ROWS`,
ordered by end of turn, id, sample), `candidate.json` once frozen, `manifest.json` once its gate let it pass. Rows are
the newest ready turns of the policy. The manifest names all that decided on them: lake versions, cut, watermark,
settings, the accepted datasets subtracted, the code; from it alone the same bytes can be made (`ingest.refreeze`).

Rows go from the join to the file in batches, so memory does not grow with the dataset.

Invariant: a folder without `manifest.json` is no dataset; it holds nothing that a later one may not use.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.baselines import segment_baselines
from ingest.config import AttributionSettings, DatasetSettings, LakePlace, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, read_manifest, verify_files, write_manifest
from ingest.formats import FORMATS
from ingest.language import LOOKED_AT, language
from ingest.rewards import specification, specification_digest

if TYPE_CHECKING:
    import pyarrow.dataset
    from duckdb import DuckDBPyConnection

    from ingest.attribution import Cut

CODE = Path(__file__).parent
CANDIDATE = "candidate.json"
MANIFEST = "manifest.json"
ROWS_FILE = "rows.parquet"

ROWS = pa.schema(
    [
        ("turn_id", pa.string()),
        ("sample", pa.int32()),
        ("feedback_revision", pa.int32()),
        ("policy", pa.string()),
        ("key_id", pa.string()),
        ("subject", pa.string()),
        ("session_id", pa.string()),
        ("segment", pa.string()),
        ("dialect", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        (
            "weight_versions",
            pa.list_(pa.struct([("version", pa.string()), ("start", pa.int32()), ("end", pa.int32())])),
        ),
        ("sampling", pa.string()),
        ("finish", pa.string()),
        ("language", pa.string()),
        ("reward", pa.float64()),
        ("weight", pa.float64()),
        ("started_at", pa.float64()),
        ("finished_at", pa.float64()),
    ]
)


_BATCH_ROWS = 2048
_SLICE = 4096
_GROUP_ROWS = 8192
_GROUP_TOKENS = 8 << 20
"""Prompt and output tokens of a row group: 8192 turns of a thousand tokens, or 160 of fifty thousand."""
_REPEATED = ["policy", "key_id", "subject", "session_id", "segment", "dialect", "sampling", "finish", "language"]
_REPEATED += ["weight_versions.list.element.version"]
_SPLIT = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ("prompt_ids", "output_ids", "logprobs")}
"""Arrays byte by byte of their values: 18 % smaller than with dictionaries, and written in 40 % of the time."""


class DatasetError(ValueError):
    """Turns of the lake that cannot become rows: says which."""


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was frozen. `passed`: its gate had let it pass before, and nothing was done now."""

    policy: str
    dataset_id: str
    rows: int
    counts: dict[str, int]
    statistics: dict[str, float]
    passed: bool


class _Cut(msgspec.Struct):
    """The part of a manifest that says how new its turns may be."""

    cut_at: float


class _Pairs(msgspec.Struct):
    """The part of a manifest that says what was used."""

    pairs: tuple[tuple[str, int, int], ...]


def read_rows(dataset: Path, manifest: str = MANIFEST) -> pa.Table:
    """The rows of a dataset's folder, columns `ROWS`, in their order.

    Raises `ContractError` where its gate never passed, or where the file is not the one that the manifest names."""
    entry = read_manifest(dataset, DatasetManifest, manifest).rows
    verify_files(dataset, (entry,))
    return pq.read_table(dataset / entry.path)


def newest_dataset(datasets: Path, policy: str) -> DatasetManifest | None:
    """The manifest of the policy's accepted dataset with the newest cut."""
    found = sorted((datasets / policy).glob(f"*/{MANIFEST}"), key=lambda path: (_cut_at(path), path.parent.name))
    return read_manifest(found[-1].parent, DatasetManifest) if found else None


def accepted_ids(datasets: Path, policy: str, since: float = -math.inf) -> tuple[str, ...]:
    """Ids of the policy's accepted datasets that may hold a turn that ended after `since`, in the order of their names.

    A manifest is read for its cut once a process: a policy gets thousands of datasets, and is looked at every few
    seconds."""
    found = (datasets / policy).glob(f"*/{MANIFEST}")
    return tuple(sorted(path.parent.name for path in found if _cut_at(path) >= since))


@cache
def _cut_at(manifest: Path) -> float:
    return read_manifest(manifest.parent, _Cut).cut_at


def pairs_of(datasets: Path, policy: str, dataset_ids: Iterable[str]) -> set[tuple[str, int]]:
    """(turn id, sample) in these accepted datasets of the policy; raises `ContractError` where one is not there."""
    folders = (datasets / policy / dataset_id for dataset_id in dataset_ids)
    return {(turn, sample) for folder in folders for turn, sample, _ in read_manifest(folder, _Pairs).pairs}


def used_turns(datasets: Path, policy: str, since: float = -math.inf) -> set[tuple[str, int]]:
    """(turn id, sample) in every accepted dataset of the policy that may hold a turn that ended after `since`."""
    return pairs_of(datasets, policy, accepted_ids(datasets, policy, since))


def freeze(
    *,
    lake: LakePlace,
    datasets: Path,
    policy: str,
    dataset_id: str,
    settings: DatasetSettings,
    attribution: AttributionSettings,
    rewards: RewardSettings,
    now: float,
    watermark: float,
) -> CandidateReport:
    """Write `rows.parquet` and `candidate.json` of a new dataset, cut at `now`; one that is there already stays.

    Zero ready turns make an empty candidate, which its gate then stops. Raises `DatasetError` where a turn's arrays
    are torn.
    """
    # DuckDB and Delta are for freezing only: the trainer reads rows without them.
    from ingest.attribution import Cut, lake_versions

    folder = datasets / policy / dataset_id
    for name in (MANIFEST, CANDIDATE):
        if (folder / name).exists():
            return _report(read_manifest(folder, DatasetManifest, name), passed=name == MANIFEST)

    cut = Cut(now, watermark, lake_versions(lake))
    manifest = write_rows(
        folder,
        lake=lake,
        datasets=datasets,
        policy=policy,
        dataset_id=dataset_id,
        max_turns=settings.max_turns,
        attribution=attribution,
        rewards=rewards,
        cut=cut,
        subtracted=accepted_ids(datasets, policy, cut.since(attribution)),
    )
    write_manifest(folder, manifest, CANDIDATE)
    return _report(manifest, passed=False)


def write_rows(
    folder: Path,
    *,
    lake: LakePlace,
    datasets: Path,
    policy: str,
    dataset_id: str,
    max_turns: int,
    attribution: AttributionSettings,
    rewards: RewardSettings,
    cut: "Cut",
    subtracted: tuple[str, ...],
) -> DatasetManifest:
    """Write `rows.parquet` of a dataset into `folder`, and give the manifest that it has as a candidate.

    The arguments, the code and the lake versions decide on every byte of both. Raises `DatasetError` where a turn's
    arrays are torn, `ContractError` where a subtracted dataset is not there.
    """
    from ingest.attribution import attributed, state_counts
    from ingest.lake import TURNS, read
    from ingest.weights import choose

    folder.mkdir(parents=True, exist_ok=True)
    used = pairs_of(datasets, policy, subtracted)
    with attributed(lake, policy, attribution, rewards, cut, used, scratch=folder) as join:
        join.execute("SET arrow_large_buffer_size = true")
        choose(join, rewards, max_turns)
        path = folder / ROWS_FILE
        turns = read(lake, TURNS, cut.lake_versions[TURNS])
        written = write_groups(path, _groups(_unpack(batch) for batch in _batches(join, turns, policy)))
        ranges = join.execute(
            "SELECT spool_id, min(sequence), max(sequence) FROM chosen GROUP BY spool_id ORDER BY spool_id"
        ).fetchall()
        return DatasetManifest(
            dataset_id=dataset_id,
            policy=policy,
            created_at=cut.at,
            cut_at=cut.at,
            watermark=cut.watermark,
            lake_versions=cut.lake_versions,
            log_ranges={spool: (first, last) for spool, first, last in ranges},
            pairs=tuple(written.pairs),
            counts=state_counts(join),
            versions=tuple(v for (v,) in join.execute("SELECT version FROM version_age ORDER BY age").fetchall()),
            attribution=attribution.model_dump(mode="json"),
            max_turns=max_turns,
            subtracted=subtracted,
            reader=reader(),
            reward_specification=specification(rewards),
            reward_digest=specification_digest(rewards),
            baselines=segment_baselines(join),
            rows=FileEntry(ROWS_FILE, path.stat().st_size, digest_file(path)),
            statistics=written.statistics() | {"response_rate": _response_rate(join)},
        )


@lru_cache(maxsize=1)
def reader() -> dict[str, str]:
    """What decides on a dataset's bytes besides its inputs: the code of this package, and the libraries it uses."""
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("*.py", "*.sql") for path in CODE.rglob(kind)):
        digest.update(f"{path.relative_to(CODE)}\0".encode() + path.read_bytes() + b"\0")
    return {"ingest": digest.hexdigest()} | {name: version(name) for name in ("duckdb", "pyarrow", "py3langid")}


@dataclass
class Written:
    """What the manifest tells of the rows, gathered as they are written: a few numbers a row, no array."""

    pairs: list[tuple[str, int, int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    languages: Counter[str] = field(default_factory=Counter)

    def add(self, group: pa.Table) -> None:
        """The rows of one group."""
        ids = (group[name].to_pylist() for name in ("turn_id", "sample", "feedback_revision"))
        self.pairs += zip(*ids, strict=True)
        self.rewards += group["reward"].to_pylist()
        self.prompt_tokens += pc.sum(pc.list_value_length(group["prompt_ids"])).as_py() or 0
        self.output_tokens += pc.sum(pc.list_value_length(group["output_ids"])).as_py() or 0
        self.languages.update(found for found in group["language"].to_pylist() if found)

    def statistics(self) -> dict[str, float]:
        """Means over the rows, and the share of each language among the answers whose language is known."""
        n, known = len(self.pairs), self.languages.total()
        shares = {f"language.{code}": count / known for code, count in sorted(self.languages.items())}
        return {
            "rows": float(n),
            "reward_mean": float(np.mean(self.rewards)) if n else 0.0,
            "accept_rate": float(np.mean(np.array(self.rewards) > 0)) if n else 0.0,
            "tokens": float(self.output_tokens),
            "mean_output_tokens": self.output_tokens / n if n else 0.0,
            "mean_prompt_tokens": self.prompt_tokens / n if n else 0.0,
            "language_known": float(known),
        } | shares


def _batches(join: "DuckDBPyConnection", turns: "pyarrow.dataset.Dataset", policy: str) -> Iterator[pa.RecordBatch]:
    """The chosen ones of the lake's turns in their order, as `ROWS` but for arrays, packed, and language, the answer.

    Of each `_SLICE` of them that part of the lake is read that ended in their time, a little ahead. DuckDB's own scan
    knows no range of doubles: it reads the whole lake, and holds a gigabyte of it."""
    slices = join.execute(
        "SELECT min(place), max(place), min(finished_at), max(finished_at) FROM chosen"
        " GROUP BY (place - 1) // $slice ORDER BY 1",
        {"slice": _SLICE},
    ).fetchall()
    stride = max(1, -(-slices[-1][1] // LOOKED_AT)) if slices else 1
    columns = [name for name in ROWS.names if name in turns.schema.names]
    ended = pc.field("finished_at")
    for first, last, begin, end in slices:
        scanner = turns.scanner(
            columns=[*columns, "answer"],
            filter=(pc.field("policy") == policy) & (ended >= begin) & (ended <= end),
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        join.register("slice", scanner.to_reader())
        yield from join.sql(
            """
            SELECT
                t.* EXCLUDE (answer), c.revision AS feedback_revision, c.segment, c.reward, c.weight,
                -- Answers are read where their language is looked for, and nowhere else.
                CASE WHEN (c.place - 1) % $stride = 0 THEN t.answer END AS language
            FROM slice t JOIN chosen c ON t.turn_id = c.turn_id AND t.sample = c.sample
            WHERE c.place BETWEEN $first AND $last
            ORDER BY c.place
            """,
            params={"stride": stride, "first": first, "last": last},
        ).to_arrow_reader(_BATCH_ROWS)


def write_groups(path: Path, groups: Iterable[pa.Table]) -> Written:
    """A rows file with these row groups."""
    written = Written()
    with pq.ParquetWriter(path, ROWS, compression="zstd", use_dictionary=_REPEATED, column_encoding=_SPLIT) as file:
        for group in groups:
            file.write_table(group, row_group_size=group.num_rows)
            written.add(group)
    return written


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in groups of at most `_GROUP_ROWS` rows and about `_GROUP_TOKENS` tokens, wherever the batches end."""
    held: list[pa.RecordBatch] = []
    rows = tokens = 0
    for batch in batches:
        while batch.num_rows:
            so_far = np.cumsum(
                pc.add(*(pc.list_value_length(batch[n]) for n in ("prompt_ids", "output_ids"))).to_numpy()
            )
            fit = min(int(np.searchsorted(so_far, _GROUP_TOKENS - tokens)) + 1, _GROUP_ROWS - rows, batch.num_rows)
            held.append(batch.slice(0, fit))
            rows, tokens = rows + fit, tokens + int(so_far[fit - 1])
            batch = batch.slice(fit)
            if rows == _GROUP_ROWS or tokens >= _GROUP_TOKENS:
                yield pa.Table.from_batches(held)
                held, rows, tokens = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _unpack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of the join as `ROWS`: packed arrays become lists without a copy a token, an answer its language."""
    columns = {name: batch[name] for name in ROWS.names}
    for name in ("prompt_ids", "output_ids", "logprobs"):
        columns[name] = _unpacked(batch["turn_id"], batch[name], name, ROWS.field(name).type)
    answers = zip(batch["dialect"].to_pylist(), batch["language"].to_pylist(), strict=True)
    columns["language"] = pa.array([_language(dialect, answer) for dialect, answer in answers], pa.string())
    return pa.RecordBatch.from_arrays([columns[f.name].cast(f.type) for f in ROWS], schema=ROWS)


def _language(dialect: str, answer: str | None) -> str | None:
    text = FORMATS[dialect].text(answer) if answer and dialect in FORMATS else None
    return language(text) if text else None


def _unpacked(turn_ids: pa.Array, packed: pa.Array, name: str, kind: pa.ListType) -> pa.Array:
    """Packed little-endian values of four bytes as a list array over the same memory."""
    blob = packed.cast(pa.large_binary())
    _, positions, data = blob.buffers()
    at = np.frombuffer(positions, np.int64, len(blob) + 1, blob.offset * 8)
    torn = np.diff(at) % 4 != 0
    if torn.any():
        turns = ", ".join(turn_ids.filter(pa.array(torn)).to_pylist()[:10])
        raise DatasetError(f"{name} of these turns are no whole number of 4-byte values, the lake is damaged: {turns}")
    first, size = int(at[0]), int(at[-1] - at[0])
    values = pa.Array.from_buffers(kind.value_type, size // 4, [None, data.slice(first, size)])
    return pa.ListArray.from_arrays(pa.array((at - first) // 4, pa.int32()), values, type=kind)


def _response_rate(join: "DuckDBPyConnection") -> float:
    """Of the policy's turns that users saw, the share that got a signal that counted."""
    ((answered, seen),) = join.execute(
        "SELECT coalesce(sum(CASE WHEN revision > 0 THEN 1 ELSE 0 END), 0), count(*)"
        " FROM attributed WHERE state NOT IN ('censored', 'superseded')"
    ).fetchall()
    return answered / seen if seen else 0.0


def _report(manifest: DatasetManifest, passed: bool) -> CandidateReport:
    return CandidateReport(
        policy=manifest.policy,
        dataset_id=manifest.dataset_id,
        rows=len(manifest.pairs),
        counts=manifest.counts,
        statistics=manifest.statistics,
        passed=passed,
    )
