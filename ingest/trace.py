"""Lineage, both ways: from a checkpoint to the turns that it learned from, and from a turn to what learned from it.

Nothing is kept for it: manifests name datasets, datasets name lake versions, places on the log and turns, checkpoints
name datasets and parents. Pure over folders and the lake; times are Unix seconds. What an erasure took is counted, not
named.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from ingest.config import AttributionSettings, LakePlace, RewardSettings
from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.erasure import erasure_digest
from ingest.contracts.files import read_manifest
from ingest.contracts.rollout import Rollout
from ingest.contracts.verdict import Verdict
from ingest.explain import Explanation, explain
from ingest.lake import ERASURES, TURNS, read

_MANIFEST, _VERDICT, _ROLLOUT = "manifest.json", "verdict.json", "rollout.json"


class TraceError(Exception):
    """There is nothing of this id: says where it was looked for."""


class TurnPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a dataset, and where it stands on the log; the place is None once the lake has let go of it."""

    turn_id: str
    sample: int
    feedback_revision: int
    spool_id: str | None = None
    sequence: int | None = None


class DatasetTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset was made of. `erased`: rows that erasures took out of it since."""

    dataset_id: str
    policy: str
    cut_at: float
    rows_sha256: str
    erased: int
    lake_versions: dict[str, int]
    log_ranges: dict[str, tuple[int, int]]
    """Spool id → first and last sequence of its turns."""
    turns: tuple[TurnPlace, ...]


class CheckpointTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint on its way from and to others. `dataset` is None for an imported model, for ancestors, and where the
    dataset's folder is gone."""

    checkpoint_id: str
    policy: str
    kind: str
    created_at: float
    dataset_id: str | None
    verdict: str | None = None
    """Decision, and against whom."""
    rollout: str | None = None
    """State, since when, and why."""
    rollout_at: float | None = None
    learned: bool = True
    """False for one that only descends from a checkpoint that did."""
    dataset: DatasetTrace | None = None
    ancestors: tuple["CheckpointTrace", ...] = ()
    """The parent, its parent, …"""
    before: str | None = None
    """The ancestor before these, where its folder is gone."""


class TurnTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a turn, and everything that came of it."""

    turn_id: str
    sample: int
    policy: str
    session_id: str
    key_id: str
    arm: str
    engine_id: str
    versions: tuple[str, ...]
    finish: str
    finished_at: float
    spool_id: str
    sequence: int
    landed_at: float
    judged: Explanation | None
    """Its state, its reward and its signals; None where the configuration no longer has its policy."""
    datasets: tuple[str, ...]
    checkpoints: tuple[CheckpointTrace, ...]
    """Those that learned from it, and their descendants."""


def trace_checkpoint(
    checkpoint_id: str, policy: str | None, *, lake: LakePlace, datasets: Path, checkpoints: Path
) -> CheckpointTrace:
    """From a checkpoint to its turns. Where several policies have the id, `policy` says which. Raises `TraceError`."""
    named = [path.parent for path in checkpoints.glob(f"*/*/{_MANIFEST}") if path.parent.name == checkpoint_id]
    found = [folder for folder in named if policy in (None, folder.parent.name)]
    if not found:
        raise TraceError(f'there is no checkpoint "{checkpoint_id}" below {checkpoints}')
    if len(found) > 1:
        policies = ", ".join(sorted(folder.parent.name for folder in found))
        raise TraceError(f'several policies have a checkpoint "{checkpoint_id}": name one of {policies}')
    [folder] = found
    own = _checkpoint(folder)
    dataset = None
    if own.dataset_id is not None and (datasets / own.policy / own.dataset_id / _MANIFEST).exists():
        dataset = _dataset(datasets / own.policy / own.dataset_id, lake)
    line, before = _line(folder)
    ancestors = tuple(_checkpoint(folder.parent / name) for name in line)
    return msgspec.structs.replace(own, dataset=dataset, ancestors=ancestors, before=before)


def trace_turn(
    turn_id: str,
    *,
    lake: LakePlace,
    datasets: Path,
    checkpoints: Path,
    rules: Mapping[str, tuple[AttributionSettings, RewardSettings]],
    now: float,
    watermark: float,
) -> list[TurnTrace]:
    """From a turn, each of its samples, to what came of it, as of `now`. `rules` are the settings of each policy.

    Raises `TraceError`.
    """
    columns = ["turn_id", "sample", "policy", "session_id", "key_id", "arm", "engine_id", "weight_versions", "finish"]
    columns += ["finished_at", "spool_id", "sequence", "landed_at"]
    rows = read(lake, TURNS).to_table(columns=columns, filter=pc.field("turn_id") == turn_id).to_pylist()
    if not rows:
        raise TraceError(_absent(turn_id, lake, checkpoints))
    policy = rows[0]["policy"]

    def judged(sample: int) -> Explanation | None:
        if policy not in rules:
            return None
        return explain(lake, turn_id, sample, rules=rules, datasets=datasets, now=now, watermark=watermark)

    named = tuple(_datasets_of(datasets / policy, turn_id))
    learned = learned_from(checkpoints, {(policy, name) for name in named})
    direct = [_checkpoint(checkpoints / name) for name in learned]
    known = tuple(msgspec.structs.replace(c, learned=c.dataset_id in named) for c in direct)
    return [
        TurnTrace(
            **{name: row[name] for name in columns if name != "weight_versions"},
            versions=tuple(dict.fromkeys(span["version"] for span in row["weight_versions"])),
            judged=judged(row["sample"]),
            datasets=named,
            checkpoints=known,
        )
        for row in sorted(rows, key=lambda row: row["sample"])
    ]


def learned_from(checkpoints: Path, datasets: Collection[tuple[str, str]]) -> list[str]:
    """`policy/checkpoint` of each that was trained on one of these (policy, dataset), or descends from one that was."""
    if not datasets:
        return []
    found: list[str] = []
    for policy in sorted({policy for policy, _ in datasets}):
        manifests = {
            path.parent.name: read_manifest(path.parent, CheckpointManifest)
            for path in (checkpoints / policy).glob(f"*/{_MANIFEST}")
        }
        reached = {name for name, manifest in manifests.items() if (policy, manifest.dataset_id) in datasets}
        before: set[str] = set()
        while reached != before:
            before = set(reached)
            reached |= {name for name, manifest in manifests.items() if manifest.parent in before}
        found += [f"{policy}/{name}" for name in sorted(reached)]
    return found


def _checkpoint(folder: Path) -> CheckpointTrace:
    manifest = read_manifest(folder, CheckpointManifest)
    verdict = read_manifest(folder, Verdict, _VERDICT) if (folder / _VERDICT).exists() else None
    rollout = read_manifest(folder, Rollout, _ROLLOUT) if (folder / _ROLLOUT).exists() else None
    return CheckpointTrace(
        checkpoint_id=manifest.checkpoint_id,
        policy=manifest.policy,
        kind=manifest.kind,
        created_at=manifest.created_at,
        dataset_id=manifest.dataset_id,
        verdict=f"{verdict.decision} against {verdict.champion}" if verdict else None,
        rollout=f"{rollout.state}: {rollout.reason}" if rollout else None,
        rollout_at=rollout.updated_at if rollout else None,
    )


def _absent(name: str, lake: LakePlace, checkpoints: Path) -> str:
    """Why nothing of this id is found, as far as what is left tells."""
    erased = read(lake, ERASURES).to_table(
        columns=["erasure_id"], filter=pc.field("digest") == erasure_digest("turn", name)
    )
    if erased.num_rows:
        [receipt, *_] = erased["erasure_id"].to_pylist()
        told = f"`everloop forget status {receipt}` names the checkpoints that learned from what went with it"
        return f'turn "{name}" was erased, by receipt {receipt}: {told}'
    children = [
        f"{path.parent.parent.name}/{path.parent.name}"
        for path in sorted(checkpoints.glob(f"*/*/{_MANIFEST}"))
        if read_manifest(path.parent, CheckpointManifest).parent == name
    ]
    if children:
        return f'checkpoint "{name}" was removed: {", ".join(children)} went on from it'
    return f'there is no checkpoint "{name}", and no turn in the lake: `everloop log seek --turn {name}` asks the log'


def _line(folder: Path) -> tuple[list[str], str | None]:
    """Ids of the parent, its parent and so on, as far as their folders are there; and the first whose is not."""
    line = [folder.name]
    while (parent := read_manifest(folder, CheckpointManifest).parent) is not None and parent not in line:
        folder = folder.parent / parent
        if not (folder / _MANIFEST).exists():
            return line[1:], parent
        line.append(parent)
    return line[1:], None


def _dataset(folder: Path, lake: LakePlace) -> DatasetTrace:
    manifest = read_manifest(folder, DatasetManifest)
    ids = sorted({turn_id for turn_id, _, _ in manifest.pairs})
    rows = read(lake, TURNS).to_table(
        columns=["turn_id", "sample", "spool_id", "sequence"], filter=pc.field("turn_id").isin(ids)
    )
    places = {(row["turn_id"], row["sample"]): (row["spool_id"], row["sequence"]) for row in rows.to_pylist()}
    return DatasetTrace(
        dataset_id=manifest.dataset_id,
        policy=manifest.policy,
        cut_at=manifest.cut_at,
        rows_sha256=manifest.rows.sha256,
        erased=sum(succession.rows for succession in manifest.erased),
        lake_versions=manifest.lake_versions,
        log_ranges=manifest.log_ranges,
        turns=tuple(_place(pair, places.get(pair[:2])) for pair in manifest.pairs),
    )


def _place(pair: tuple[str, int, int], place: tuple[str, int] | None) -> TurnPlace:
    spool_id, sequence = place or (None, None)
    return TurnPlace(turn_id=pair[0], sample=pair[1], feedback_revision=pair[2], spool_id=spool_id, sequence=sequence)


def _datasets_of(folder: Path, turn_id: str) -> Iterator[str]:
    """Ids of the accepted datasets with a row of this turn. Only manifests in which its bytes occur are decoded."""
    for path in sorted(folder.glob(f"*/{_MANIFEST}")):
        if turn_id.encode() in path.read_bytes() and any(
            pair[0] == turn_id for pair in read_manifest(path.parent, DatasetManifest).pairs
        ):
            yield path.parent.name
