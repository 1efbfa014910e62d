"""Upkeep: what keeps the lake small and quick, and what an erasure needs so that no file remembers.

Of each table: small files become large ones, in which a session stands together (`ingest.sorted_runs`); files that no
version needs any more go, after a grace for readers and for appends under way; the Delta log gets a checkpoint and
loses what is older than it may be asked for. Versions that a dataset names stay readable for a while, so that it can be
frozen again.

An erasure ends all of that at once: old versions, files that no version names, and the log's own entries (a deletion's
predicate names what it deleted) go. Which files may go is told without a clock, for the lake's store has its own: those
that were there before a fence.
"""

import contextlib
import logging
import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSelector

from ingest.commits import Table, fence, refresh, set_property, written_at
from ingest.config import LakePlace, LakeSettings
from ingest.contracts.files import read_manifest
from ingest.lake import SCHEMAS, TURNS, files, open_table
from ingest.sorted_runs import merge
from ingest.watermarks import fold

logger = logging.getLogger(__name__)

_LOG = "_delta_log"
_LOG_KEPT = "delta.logRetentionDuration"
_LOOKED_AFTER = "everloop.lookedAfterAt"
_STAGED = re.compile(r"#\d+$")
"""How the name of a file ends that delta-rs is still writing."""


class _Cut(msgspec.Struct):
    """The part of a dataset's manifest that says what it was frozen from."""

    cut_at: float
    lake_versions: dict[str, int]


def upkeep(
    lake: LakePlace, settings: LakeSettings, now: float, *, datasets: Path | None = None, erase: bool = False
) -> None:
    """Looks after every table, as of `now` (Unix seconds). Idempotent; may be killed anywhere and run beside landing.

    Versions that a manifest below `datasets` names are kept for `reproducible_days` after its cut. `erase`: after
    deletes: no version before them can be read any more, and neither a file nor the log keeps what they removed. What
    an append writes meanwhile, to be refused by the fence, is spared: a receipt calls it again before it is complete.

    Raises `LandError` where other writers win every time.
    """
    if erase:
        before = {name: _files_below(open_table(lake, name), "") for name in SCHEMAS}
        staged = _staged(lake)
        fence(lake, SCHEMAS)
        for path in staged:
            path.unlink(missing_ok=True)
        for name in SCHEMAS:
            _forget_past(Table(lake, name), before[name])
        return
    fold(lake)
    pinned = _pinned(datasets, now - settings.reproducible_days * 86400) if datasets else {}
    for name in SCHEMAS:
        table = Table(lake, name)
        try:
            while merge(table.snapshot, name):
                table = Table(lake, name)
            _keep_log(table, settings)
            keep = [version for version in pinned.get(name, ()) if _readable(table.snapshot, version)]
            table.snapshot.vacuum(
                settings.old_files_hours, dry_run=False, enforce_retention_duration=False, full=True, keep_versions=keep
            )
            _checkpoint(table)
        except (DeltaError, FileNotFoundError) as error:
            logger.info("table %s is left to the next upkeep, another writer came first: %s", name, error)
        except (pa.ArrowException, OSError) as error:
            logger.error("table %s is not looked after, a file of it cannot be read: %s", name, error)


def upkeep_if_due(
    lake: LakePlace, settings: LakeSettings, now: float, *, datasets: Path | None, living: Iterable[str]
) -> bool:
    """`upkeep` where the last time is long enough ago, by one lander alone. `living` spools are remembered anew.

    Not by a lander whose clock is further from the store's than old files stay: to it, files that others write now look
    old enough to go.
    """
    turns = open_table(lake, TURNS)
    last = turns.metadata().configuration.get(_LOOKED_AFTER)
    if last is not None and abs(now - float(last)) < settings.upkeep_seconds:  # a time to come is a wrong clock's
        return False
    try:
        turns.alter.set_table_properties({_LOOKED_AFTER: f"{now:.3f}"}, raise_if_not_exists=False)
    except DeltaError:  # another lander does it
        return False
    if last is None:  # a new lake
        return False
    if (off := abs(now - written_at(turns))) > settings.old_files_hours * 3600:
        logger.error("the lake is not looked after: the clock here is %.0f h from its store's, set it", off / 3600)
        with contextlib.suppress(DeltaError):  # then others look after it sooner
            turns.alter.set_table_properties({_LOOKED_AFTER: last}, raise_if_not_exists=False)
        return False
    refresh(lake, living, now)
    upkeep(lake, settings, now, datasets=datasets)
    return True


def _keep_log(table: Table, settings: LakeSettings) -> None:
    """As long as a version may be asked for, and a day."""
    kept = f"interval {math.ceil(settings.reproducible_days) + 1} days"
    if table.snapshot.metadata().configuration.get(_LOG_KEPT) != kept:
        set_property(table, _LOG_KEPT, kept)


def _checkpoint(table: Table) -> None:
    """One of the newest version; what is older and past its time leaves the log."""
    snapshot = table.renew()
    snapshot.create_checkpoint()
    snapshot.cleanup_metadata()


def _pinned(datasets: Path, since: float) -> dict[str, set[int]]:
    """Table → versions that datasets cut after `since` were frozen from, accepted or still waiting for their gate."""
    pinned: dict[str, set[int]] = {}
    for path in [*datasets.glob("*/*/manifest.json"), *datasets.glob("*/*/candidate.json")]:
        cut = read_manifest(path.parent, _Cut, path.name)
        if cut.cut_at >= since:
            for name, version in cut.lake_versions.items():
                pinned.setdefault(name, set()).add(version)
    return pinned


def _readable(table: DeltaTable, version: int) -> bool:
    try:
        DeltaTable(table.table_uri, version=version)
    except DeltaError:
        return False
    return True


def _forget_past(table: Table, before: set[str]) -> None:
    """`before`: the files that were there before the fence. Of those, an append under way will name none any more."""

    def clear(snapshot: DeltaTable) -> None:
        snapshot.create_checkpoint()
        named = set(pa.table(snapshot.get_add_actions())["path"].to_pylist())
        log = _files_below(snapshot, _LOG)
        entries = {path for path in log if path.removeprefix(f"{_LOG}/")[:20] < f"{snapshot.version():020}"}
        for path in before - named | entries:
            with contextlib.suppress(FileNotFoundError):  # another erasure was quicker
                files(snapshot).delete_file(path)

    table.decide(clear)


def _files_below(table: DeltaTable, folder: str) -> set[str]:
    found = files(table).get_file_info_selector(FileSelector(folder))
    return {info.path for info in found if info.is_file}


def _staged(lake: LakePlace) -> list[Path]:
    """What writers that were killed had not given its name yet: delta-rs does not see it. Object stores have no such
    files, but may keep the parts of an upload (docs/lake.md)."""
    if not isinstance(lake, Path):
        return []
    return [path for path in lake.rglob("*#*") if _STAGED.search(path.name)]
