"""Freezing again, from the manifest alone: the proof that a dataset is what its manifest says it is.

It works while the lake's versions live, until retention or an erasure takes them. What is missing is told before
anything is made.
"""

from importlib.metadata import version
from pathlib import Path

from deltalake.exceptions import DeltaError
from pyarrow.fs import FileType
from pydantic import ValidationError

from ingest.attribution import Cut
from ingest.config import AttributionSettings, LakePlace, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import FileEntry
from ingest.datasets import MANIFEST
from ingest.freeze import reader, write_rows
from ingest.lake import at_version, dataset
from ingest.rewards import specification

_DERIVED = "classifier_digest"
"""Of a written specification, the part that no setting holds."""


class NotReproducible(Exception):
    """The dataset cannot be made again, or comes out otherwise. `missing`: each thing that is not what it was."""

    def __init__(self, dataset_id: str, missing: tuple[str, ...]) -> None:
        super().__init__(dataset_id, missing)
        self.dataset_id, self.missing = dataset_id, missing

    def __str__(self) -> str:
        return f"dataset {self.dataset_id} cannot be frozen again: {'; '.join(self.missing)}"


def refreeze(manifest: DatasetManifest, *, lake: LakePlace, datasets: Path, into: Path) -> FileEntry:
    """Make the dataset's rows anew in the folder `into`, from what the manifest names; its entry, equal to the
    manifest's. Raises `NotReproducible` where something is missing, or the digest is another."""
    if manifest.watermark is None:
        raise NotReproducible(manifest.dataset_id, ("its manifest, of schema 1, does not name what it was made from",))
    if manifest.erased:
        rows = sum(succession.rows for succession in manifest.erased)
        raise NotReproducible(manifest.dataset_id, (f"erasures took {rows} of its rows",))
    missing = [*_lost_versions(lake, manifest), *_lost_datasets(datasets, manifest)]
    attribution, rewards, unread = _settings(manifest)
    if missing or unread or attribution is None or rewards is None:
        raise NotReproducible(manifest.dataset_id, (*missing, *unread))
    made = write_rows(
        into,
        lake=lake,
        datasets=datasets,
        policy=manifest.policy,
        dataset_id=manifest.dataset_id,
        max_turns=manifest.max_turns,
        attribution=attribution,
        rewards=rewards,
        cut=Cut(manifest.cut_at, manifest.watermark, manifest.lake_versions),
        subtracted=manifest.subtracted,
    )
    if made.rows.sha256 != manifest.rows.sha256:
        raise NotReproducible(manifest.dataset_id, _differences(manifest, made))
    return made.rows


def _lost_versions(lake: LakePlace, manifest: DatasetManifest) -> list[str]:
    lost = []
    for name, wanted in manifest.lake_versions.items():
        try:
            table = at_version(lake, name, wanted)
        except (DeltaError, OSError) as error:
            lost.append(f"version {wanted} of the table {name} is gone: {str(error).splitlines()[0]}")
            continue
        files = dataset(table)
        gone = sum(info.type is FileType.NotFound for info in files.filesystem.get_file_info(files.files))
        if gone:
            lost.append(f"{gone} of the {len(files.files)} files of version {wanted} of the table {name} are gone")
    return lost


def _lost_datasets(datasets: Path, manifest: DatasetManifest) -> list[str]:
    return [
        f"dataset {name}, whose turns were left out of it, is gone"
        for name in manifest.subtracted
        if not (datasets / manifest.policy / name / MANIFEST).exists()
    ]


def _settings(
    manifest: DatasetManifest,
) -> tuple[AttributionSettings | None, RewardSettings | None, list[str]]:
    """The settings that the manifest names, and what of them this version of everloop does not know."""
    written = manifest.reward_specification
    implicit = {name: value for name, value in written.get("implicit", {}).items() if name != _DERIVED}
    try:
        attribution = AttributionSettings(**manifest.attribution)
        rewards = RewardSettings(**written | {"implicit": implicit})
    except ValidationError as error:
        unknown = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors())
        return None, None, [f"its settings are not those of everloop {version('everloop')}: {unknown}"]
    if specification(rewards) != written:
        return attribution, rewards, ["the classifier of what users say is another than it was"]
    return attribution, rewards, []


def _differences(manifest: DatasetManifest, made: DatasetManifest) -> tuple[str, ...]:
    """Why the digest may be another: what made it, or the rows that differ."""
    here = reader()
    changed = tuple(
        f"{name} was {was} and is {here.get(name, 'not here')}"
        for name, was in manifest.reader.items()
        if here.get(name) != was
    )
    before, now = set(manifest.pairs), set(made.pairs)
    rows = f"{len(before - now)} rows are no longer made, {len(now - before)} are new"
    return (f"the digest of its rows is {made.rows.sha256}, not {manifest.rows.sha256}", rows, *changed)
