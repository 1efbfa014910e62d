"""The texts of turns, for people: what the lake still has of them."""

from collections.abc import Iterable

import pyarrow.compute as pc

from ingest.config import LakePlace
from ingest.formats import FORMATS
from ingest.lake import TURNS, read


def texts(lake: LakePlace, turn_ids: Iterable[str]) -> dict[tuple[str, int], tuple[str | None, str | None]]:
    """(turn id, sample) → what the user said last, and the answer; None for what is not known. Without an entry: the
    lake does not have the turn any more."""
    table = read(lake, TURNS).to_table(
        columns=["turn_id", "sample", "dialect", "request", "answer"],
        filter=pc.field("turn_id").isin(list(turn_ids)),
    )
    found = {}
    for row in table.to_pylist():
        form = FORMATS[row["dialect"]]
        found[row["turn_id"], row["sample"]] = form.tail(row["request"]).said, form.text(row["answer"])
    return found
