"""Reading the log, whatever it is made of.

`LogReader` is what landing knows: batches of records, and a watermark. `embedded_log` reads the spools of this machine,
`kafka_log` a topic. A record's identity is (spool id, sequence); a reader gives every record past `after` at
least once and, within a spool, in order and without holes, which is what makes "drop what is at or below the number I
committed" an exact deduplication.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ingest.config import LakePlace, LogSettings
from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.errors import ContractError
from ingest.contracts.events import Record, decode_event
from ingest.contracts.turn import Turn

BATCH_RECORDS = 2000
BATCH_BYTES = 32 << 20


class LogError(Exception):
    """The log cannot be read: says where and what to do."""


class LogReader(Protocol):
    """One pass over the log, up to where it ended when the pass began."""

    def batches(self, after: Callable[[str], int]) -> Iterator[list[Record]]:
        """Records past `after(spool id)`. Asking for the next batch says that all but the last are safe; where the last
        is empty, that all are."""
        ...

    def watermark(self) -> float:
        """Unix seconds: all that was received up to then has been given. Valid when the batches are exhausted."""
        ...

    def living(self) -> list[str]:
        """Spools that may give more."""
        ...

    lost: int
    """Events that the log's retention removed before they were given."""


def open_log(settings: LogSettings, spool: Path, lake: LakePlace | None) -> LogReader:
    """The configured reader. `lake`: whose landers share what is read of Kafka; None reads it from its start."""
    if settings.kind == "embedded":
        from ingest.embedded_log import EmbeddedLog

        return EmbeddedLog(spool)
    from ingest.kafka_log import KafkaLog

    return KafkaLog(settings, lake)


def every(settings: LogSettings, spool: Path) -> Iterator[Record]:
    """All that is on the log now, one spool after the other."""
    for batch in open_log(settings, spool, None).batches(lambda spool_id: 0):
        yield from batch


def readable(record: Record) -> dict:
    """A record for people, JSON-able: `spool_id`, `sequence`, and `event` or `error`."""
    place = {"spool_id": record.spool_id, "sequence": record.sequence}
    try:
        event = decode_event(record.payload)
    except ContractError as error:
        return place | {"error": str(error)}
    shown = msgspec.to_builtins(event)
    if isinstance(event, Turn):
        shown["prompt_ids"] = unpack_ids(event.prompt_ids).tolist()
        shown["output_ids"] = unpack_ids(event.output_ids).tolist()
        shown["logprobs"] = unpack_logprobs(event.logprobs).tolist()
    return place | {"event": shown}
