"""Upkeep: what keeps the lake small and quick, and what an erasure needs so that no file remembers.

Each table: small files become large ones, files that no version needs any more go, the log gets a checkpoint and loses
what is old.
"""

from pathlib import Path

from ingest.config import LakeSettings


def upkeep(
    lake: Path, settings: LakeSettings, now: float, *, datasets: Path | None = None, erase: bool = False
) -> None:
    """Looks after every table, as of `now` (Unix seconds). Idempotent; may be killed anywhere and run beside landing.

    Versions that a manifest below `datasets` names are kept for `reproducible_days` after its cut. `erase`: after
    deletes: no version before them can be read any more, and neither a file nor the log keeps what they removed.
    """
