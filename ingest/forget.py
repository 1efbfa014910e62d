"""Forget: what the log, the lake, the datasets and their pages hold of somebody, removed, and never let in again.

`file_erasures` puts a receipt's erasures on the log through a spool of their own, so that they reach every lake that
reads it, replays included. `erase` then lands, finds which turns and sessions belong to the receipt (they are filed,
too), and once the lake knows the erasure removes what can be reached:

- sealed segments of the spools are rewritten, an erasure in the place of each event; active ones once they are sealed;
  events that the broker refused go;
- rows of the lake are deleted, and the lake keeps no version, file or log entry of before (`ingest.upkeep`);
- datasets get successors, validation results and pages that name a turn go (`ingest.successors`).

Invariant: a target is in the receipt before its erasure is on the log, and there before anything of it is removed. So
whatever was killed goes on from the digests alone.
"""

import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake.exceptions import DeltaError

from ingest.commits import ATTEMPTS, REWRITER, LandError, fence
from ingest.config import LakePlace, LakeSettings, LogSettings
from ingest.contracts.erasure import Erasure, erasure_digest
from ingest.contracts.events import encode_event
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS, open_table, read
from ingest.land import land
from ingest.receipts import Receipts, ReceiptState
from ingest.refused import forget_refused
from ingest.rows import named
from ingest.spool import SegmentUnavailable, Spool, folders, rewrite
from ingest.spool.damage import UNFINISHED
from ingest.spool.folder import STAMP_SLACK
from ingest.successors import INDEX, RESULTS, Digests, erase_dataset, erase_pages, succeeded, turns_within
from ingest.upkeep import upkeep

Place = tuple[str, int]
"""Spool id and sequence: a row's identity on the log."""

_PLACES = 500
"""Rows named in one predicate: delta-rs overflows its stack at some ten thousand."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """What one look of a receipt came to."""

    known: bool
    """Whether the lake knows the erasure: before, nothing is removed."""
    settled: bool
    """Whether all that any spool received before the erasures is on the log, and removed."""
    waits: str
    """For what, where it is not."""
    removed: dict[str, int]
    datasets: tuple[tuple[str, str], ...]
    """(policy, dataset) of those that have a successor by this receipt."""


def file_erasures(book: Receipts, receipt_id: str, spool: Path) -> None:
    """Appends those of the receipt's erasures that may not be on the log yet. Raises `SpoolError`."""
    erasures = book.unfiled(receipt_id)
    if erasures:
        writer = Spool.open(spool)
        try:
            writer.append_sync(erasures)
            at = time.time()
            # Until the spool can say that it has all up to then: where no gateway lives, no other spool will say so.
            time.sleep(1.1 * STAMP_SLACK)
        finally:
            writer.close()
        book.filed(receipt_id, erasures, at)
    if book.get(receipt_id).state is ReceiptState.REQUESTED:
        book.move(receipt_id, ReceiptState.FILED)


def erase(
    *,
    receipts: Path,
    receipt_id: str,
    log: LogSettings,
    spool: Path,
    lake: LakePlace,
    settings: LakeSettings,
    datasets: Path,
    docs: Path,
    scratch: Path,
    patience: float = 0.0,
) -> Reached:
    """One look of a receipt: files, lands, removes. Waits up to `patience` seconds for the log to be complete.

    `scratch` is the folder in which attribution keeps what it has no room for in memory. No other stage may be at work.
    May be killed anywhere and called again. Raises `SpoolError`, `LogError`, `LandError`.
    """
    book = Receipts(receipts)
    deadline = time.monotonic() + patience
    fenced = False
    while True:
        file_erasures(book, receipt_id, spool)
        landed = land(log=log, spool=spool, lake=lake, settings=settings, datasets=datasets)
        erased = _erasures_of(lake, receipt_id)
        known = any(target != "turn" for target, _ in erased)
        if known:  # landing has dropped turns, each of which is a target from now on
            book.add_targets(receipt_id, erased, filed_at=0.0)
            if not fenced:  # what lands from here on of another lander's, it chose knowing of the erasure
                fence(lake)
                fenced = True
        goal = book.targets(receipt_id)
        settled = known and landed.watermark >= book.filed_at(receipt_id)
        if known and book.add_targets(receipt_id, belonging(lake, datasets, goal)):
            continue
        if settled or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if not known:
        waits = "its erasure has not come to the lake yet" + (
            ": is the forwarder running, and its broker?" if log.kind == "kafka" else ""
        )
        return Reached(known=False, settled=False, waits=waits, removed={}, datasets=())
    if book.get(receipt_id).state is ReceiptState.FILED:
        book.move(receipt_id, ReceiptState.REMOVING)
    removed: Counter[str] = Counter()
    receipt = book.get(receipt_id)
    request = Erasure(erasure_id=receipt_id, target=receipt.target, digest="", requested_at=receipt.requested_at)
    removed["events in spools"] = rewrite_spools(spool, goal, request)
    removed["events in spools"] += forget_refused(spool, lambda payload: _covering(payload, goal) is not None)
    removed.update(delete_rows(lake, goal))
    upkeep(lake, settings, time.time(), datasets=datasets, erase=True)
    for folder in _folders(datasets):
        removed["rows of datasets"] += erase_dataset(folder, goal, receipt_id, time.time())
    removed["pages"] = erase_pages(docs, goal)
    if (docs / RESULTS).exists() and not (docs / INDEX).exists():
        from ingest.gate import write_index  # Great Expectations takes seconds to import

        write_index(docs)
    for path in scratch.glob("join-*"):
        shutil.rmtree(path)  # of an attribution that was killed
    crashed = [*spool.glob(f"{UNFINISHED}*"), *spool.glob(f"*/{UNFINISHED}*")]
    damaged = sorted(path.name for path in (spool / ".damaged").glob("*") if path.suffix != ".json")
    waits = ""
    if not settled:
        waits = "some spool has not sealed what it received before: its gateway, or the forwarder, is behind"
    elif crashed:
        waits = f"a crash left {crashed[0].name} in the spools: it is removed ten minutes after"
    elif damaged:
        waits = f"damaged files that nobody can read may hold it, remove them: {', '.join(damaged)}"
    return Reached(
        known=True,
        settled=not waits,
        waits=waits,
        removed={name: count for name, count in removed.items() if count},
        datasets=tuple(succeeded(datasets, receipt_id)),
    )


def belonging(lake: LakePlace, datasets: Path, goal: Digests) -> list[tuple[str, str]]:
    """(target, digest) of the turns in the lake and in datasets that a subject or session of `goal` covers, and of the
    sessions in the lake that had no other subject's turn."""
    turns = read(lake, TURNS)
    subjects = _covered(turns, "subject", "subject", goal)
    sessions = _covered(turns, "session_id", "session", goal)
    theirs = _among("subject", subjects)
    turn_ids = _values(turns, "turn_id", theirs | _among("session_id", sessions))
    turn_ids.update(turn_id for folder in _folders(datasets) for turn_id in turns_within(folder, goal))
    took_part = _values(turns, "session_id", theirs)
    shared = _values(turns, "session_id", _among("session_id", took_part) & ~theirs)
    found = [("turn", name) for name in sorted(turn_ids)] + [("session", name) for name in sorted(took_part - shared)]
    return [(target, erasure_digest(target, name)) for target, name in found]


def delete_rows(lake: LakePlace, goal: Digests) -> Counter[str]:
    """Deletes every row that `goal` covers, after which no append that knew nothing of it can land. Rows by table."""
    fence(lake)
    deleted: Counter[str] = Counter()
    for name in SCHEMAS:
        columns = SCHEMAS[name].names
        if name == ERASURES or not {"subject", "session_id", "about"} & set(columns):
            continue
        predicates = [
            _digest_in(target, column, goal)
            for target, column in (("subject", "subject"), ("session", "session_id"))
            if column in columns and target in goal.values()
        ]
        if name == FEEDBACK:
            predicates += _predicates(_about(read(lake, name), goal))
        if name == REJECTS:
            predicates += _predicates(_rejected(read(lake, name), goal))
        for predicate in predicates:
            deleted[name] += _delete(lake, name, predicate)
    return deleted


def rewrite_spools(root: Path, goal: Digests, request: Erasure) -> int:
    """Puts an erasure in the place of each event in a sealed segment that `goal` covers; how many there were.

    `request` is copied: its receipt and its time.
    """
    replaced = 0
    for folder in folders(root):
        for segment in folder.sealed():
            try:
                found = sum(_covering(payload, goal) is not None for _, payload in folder.read(segment))
                if found:
                    sealed_at = os.stat(segment.path).st_mtime
                    rewrite(segment, (_replaced(payload, goal, request) for _, payload in folder.read(segment)))
                    os.utime(segment.path, (sealed_at, sealed_at))  # retention goes by it
            except (SegmentUnavailable, FileNotFoundError):
                if segment.path.exists():
                    raise
                continue  # shipped, or past its retention, just now
            replaced += found
    return replaced


def _folders(datasets: Path) -> list[Path]:
    return sorted(path for path in datasets.glob("*/*") if path.is_dir())


def _erasures_of(lake: LakePlace, receipt_id: str) -> list[tuple[str, str]]:
    """(target, digest) of the receipt's erasures that the lake knows."""
    rows = read(lake, ERASURES).to_table(columns=["target", "digest"], filter=pc.field("erasure_id") == receipt_id)
    return list(zip(rows["target"].to_pylist(), rows["digest"].to_pylist(), strict=True))


def _covering(payload: bytes, goal: Digests) -> tuple[str, str] | None:
    """(target, digest) of the target that covers the event."""
    for target, name in named(payload):
        if (digest := erasure_digest(target, name)) in goal:
            return target, digest
    return None


def _replaced(payload: bytes, goal: Digests, request: Erasure) -> bytes:
    """The event, or the erasure of it: for a turn of the turn itself, as landing leaves one of what it drops."""
    covering = _covering(payload, goal)
    if covering is None:
        return payload
    turn = next((("turn", erasure_digest(*pair)) for pair in named(payload) if pair[0] == "turn"), None)
    target, digest = turn or covering
    return encode_event(msgspec.structs.replace(request, target=target, digest=digest))


def _values(rows: pyarrow.dataset.Dataset, column: str, of: pc.Expression | None = None) -> set[str]:
    batches = rows.to_batches(columns=[column], filter=of)
    return {value for batch in batches for value in pc.unique(batch[column]).to_pylist() if value}


def _covered(rows: pyarrow.dataset.Dataset, column: str, target: str, goal: Digests) -> set[str]:
    """The values of a column that `goal` covers as this target."""
    if target not in goal.values():
        return set()
    return {value for value in _values(rows, column) if erasure_digest(target, value) in goal}


def _among(column: str, values: set[str]) -> pc.Expression:
    return pc.field(column).isin(pa.array(sorted(values), pa.string()))


def _about(feedback: pyarrow.dataset.Dataset, goal: Digests) -> list[Place]:
    """The feedback on turns and sessions that `goal` covers."""
    found: list[Place] = []
    for batch in feedback.to_batches(columns=["target", "target_id", "spool_id", "sequence"]):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found += [
            (spool_id, sequence)
            for target, name, spool_id, sequence in rows
            if erasure_digest("session" if target == "session" else "turn", name) in goal
        ]
    return found


def _rejected(rejects: pyarrow.dataset.Dataset, goal: Digests) -> list[Place]:
    """The rejects that name somebody whom `goal` covers."""
    found: list[Place] = []
    for batch in rejects.to_batches(columns=["about", "spool_id", "sequence"]):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found += [(spool_id, sequence) for about, spool_id, sequence in rows if not goal.keys().isdisjoint(about)]
    return found


def _predicates(places: list[Place]) -> Iterator[str]:
    """Conditions that hold for these rows alone: the log keeps them for a while, and a place names nobody."""
    for spool_id, group in itertools.groupby(sorted(places), key=lambda place: place[0]):
        sequences = [str(sequence) for _, sequence in group]
        for at in range(0, len(sequences), _PLACES):
            yield f"spool_id = '{spool_id}' AND sequence IN ({', '.join(sequences[at : at + _PLACES])})"


def _digest_in(target: str, column: str, goal: Digests) -> str:
    digests = ", ".join(f"'{digest}'" for digest, kind in goal.items() if kind == target)
    return f"encode(sha256(concat('{target}:', {column})), 'hex') IN ({digests})"


def _delete(lake: LakePlace, name: str, predicate: str) -> int:
    refused: DeltaError | None = None
    for _ in range(ATTEMPTS):
        try:
            return open_table(lake, name).delete(predicate, REWRITER)["num_deleted_rows"]
        except DeltaError as error:
            refused = error
    raise LandError(f"rows of table {name} could not be deleted, other writers came first ({refused}); try again")
