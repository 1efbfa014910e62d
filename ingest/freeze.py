"""Freezing: a dataset of the policy's newest ready turns, with a manifest that names all that decided on them.

The join (`ingest.attribution`) tells who is ready, `ingest.weights` which of them are chosen and what they weigh; the
chosen ones are read from the lake (`ingest.chosen`) and written (`ingest.row_groups`) in batches, so that memory does
not grow with the dataset. The manifest names lake versions, cut, watermark, settings, the accepted datasets subtracted,
the code: from it alone the same bytes can be made (`ingest.refreeze`).
"""

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import duckdb
import msgspec

from ingest.attribution import Cut, attributed, lake_versions, state_counts
from ingest.baselines import segment_baselines
from ingest.chosen import chosen_rows
from ingest.config import AttributionSettings, DatasetSettings, LakePlace, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS_FILE, accepted_ids, pairs_of
from ingest.lake import TURNS, read
from ingest.rewards import specification, specification_digest
from ingest.row_groups import row_groups, write_groups
from ingest.weights import choose

CODE = Path(__file__).parent


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was frozen. `passed`: its gate had let it pass before, and nothing was done now."""

    policy: str
    dataset_id: str
    rows: int
    counts: dict[str, int]
    statistics: dict[str, float]
    passed: bool


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
    cut: Cut,
    subtracted: tuple[str, ...],
) -> DatasetManifest:
    """Write `rows.parquet` of a dataset into `folder`, and give the manifest that it has as a candidate.

    The arguments, the code and the lake versions decide on every byte of both. Raises `DatasetError` where a turn's
    arrays are torn, `ContractError` where a subtracted dataset is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    used = pairs_of(datasets, policy, subtracted)
    with attributed(lake, policy, attribution, rewards, cut, used, scratch=folder) as join:
        choose(join, rewards, max_turns)
        path = folder / ROWS_FILE
        turns = read(lake, TURNS, cut.lake_versions[TURNS])
        written = write_groups(path, row_groups(chosen_rows(join, turns, policy)))
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


def _response_rate(join: duckdb.DuckDBPyConnection) -> float:
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
