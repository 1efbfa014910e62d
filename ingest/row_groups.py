"""The rows file of a dataset: how columns are written, where row groups end, and what is counted on the way.

Invariant: the rows decide on its bytes, whatever batches they come in. Where a page of Parquet ends depends on the
pieces of memory that are written, so a group is cut into pieces at fixed rows of the dataset.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.datasets import ROWS

_GROUP_ROWS = 8192
_GROUP_TOKENS = 8 << 20
"""Prompt and output tokens of a row group: 8192 turns of a thousand tokens, or 160 of fifty thousand."""
_PIECE_ROWS = 2048
_REPEATED = ["policy", "key_id", "subject", "session_id", "segment", "dialect", "sampling", "finish", "language"]
_REPEATED += ["weight_versions.list.element.version"]
_SPLIT = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ("prompt_ids", "output_ids", "logprobs")}
"""Arrays byte by byte of their values: 18 % smaller than with dictionaries, and written in 40 % of the time."""


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


def write_groups(path: Path, groups: Iterable[pa.Table]) -> Written:
    """A rows file with these row groups."""
    written = Written()
    with pq.ParquetWriter(path, ROWS, compression="zstd", use_dictionary=_REPEATED, column_encoding=_SPLIT) as file:
        for group in groups:
            file.write_table(group, row_group_size=group.num_rows)
            written.add(group)
    return written


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in groups of at most `_GROUP_ROWS` rows and about `_GROUP_TOKENS` tokens."""
    held: list[pa.RecordBatch] = []
    rows = tokens = before = 0
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
                yield _in_pieces(pa.Table.from_batches(held), before)
                held, rows, tokens, before = [], 0, 0, before + rows
    if held:
        yield _in_pieces(pa.Table.from_batches(held), before)


def _in_pieces(group: pa.Table, before: int) -> pa.Table:
    """The group in pieces that end at every `_PIECE_ROWS`th row of the dataset, which has `before` rows before it."""
    whole = group.combine_chunks()
    ends = range(_PIECE_ROWS - before % _PIECE_ROWS, group.num_rows, _PIECE_ROWS)
    return pa.concat_tables(whole.slice(begin, end - begin) for begin, end in pairwise([0, *ends, group.num_rows]))
