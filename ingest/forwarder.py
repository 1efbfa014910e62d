"""The forwarder: ships sealed segments of every spool here to Kafka, and removes what was acknowledged.

    python -m ingest.forwarder --spool FOLDER --bootstrap HOST:PORT --topic NAME

A pass: adopt dead spools, then for each spool ship its segments in order, note how far it got (`shipped`), unlink them,
and publish its watermark. Killed between the acknowledgement and the note, it ships again: whoever lands tells
duplicates by (spool id, sequence). A broker that is down costs disk, never an event: the producer retries for ever.

An event above the topic's record limit is sent in parts, so that every event arrives whatever its size (decision 8).
Order within a spool is the idempotent producer's; should a batch be lost all the same, `previous` in the headers shows
the hole.
"""

import argparse
import itertools
import logging
import signal
import threading
from collections import deque
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from ingest.config import LogSettings
from ingest.contracts.process_logs import structured
from ingest.kafka_topic import (
    RESERVE,
    EventPlace,
    Headers,
    TopicInfo,
    Watermark,
    ensure_topic,
    event_headers,
    partition_of,
    split,
    watermark_headers,
)
from ingest.log import LogError
from ingest.spool import SealedSegment, SegmentUnavailable, SpoolFolder, adopt, folders

logger = logging.getLogger("ingest.forwarder")  # also when run as __main__

_IN_FLIGHT = 5000
"""Records sent and not yet acknowledged."""
_FOR_EVER_MS = 2**31 - 1
_WATERMARK_SECONDS = 1.0
"""A watermark is published only when it has moved by this much."""


class Stopped(Exception):
    """Asked to stop while it waited for a broker. Nothing is lost: what was not acknowledged is still there."""


class Forwarder:
    """Ships the spools below `root`. One thread; `stop` may be set by another."""

    def __init__(self, root: Path, settings: LogSettings, stop: threading.Event) -> None:
        self._root = root
        self._settings = settings
        self._stop = stop
        self._published: dict[str, float] = {}
        self._topic: TopicInfo
        self._producer: Any = None

    def run(self, every: float = 0.5) -> None:
        """Passes until stopped; waits for a broker as long as it takes. Raises `LogError` about the topic."""
        while not self._stop.is_set():
            try:
                self.connect()
                while not self._stop.wait(every):
                    self.once()
            except Stopped:
                logger.info("stopped while waiting for the broker")
            except KafkaError as error:
                # This producer is done for: a new one asks for the topic's limit and sends again.
                logger.error("connecting anew: %s", type(error).__name__)
                self._stop.wait(every)
            finally:
                self.close()

    def connect(self) -> None:
        """Makes or checks the topic and makes the producer."""
        while True:
            try:
                self._topic = ensure_topic(self._settings)
                self._producer = self._make_producer()
                break
            except KafkaError as error:
                logger.warning("no broker at %s yet: %s", self._settings.bootstrap, type(error).__name__)
                if self._stop.wait(2.0):
                    raise Stopped from error
        logger.info("shipping to topic %s with %d partitions", self._settings.topic, self._topic.partitions)

    def close(self) -> None:
        """Lets go of the producer."""
        if self._producer is not None:
            self._producer.close(timeout=1)
            self._producer = None

    def once(self) -> int:
        """One pass over all spools; returns how many segments were shipped."""
        adopt(self._root)
        return sum(self._ship(folder) for folder in folders(self._root))

    # -- one spool

    def _ship(self, folder: SpoolFolder) -> int:
        mark = Watermark(folder.watermark(), folder.closed())  # asked before its segments are listed
        shipped = 0
        for segment in folder.sealed():
            try:
                folder.write_shipped(self._ship_segment(folder, segment))
                segment.path.unlink()
                shipped += 1
            except SegmentUnavailable as error:
                logger.error("spool %s waits: %s", folder.spool_id, error)
                return shipped
        if mark.closed or mark.at >= self._published.get(folder.spool_id, 0.0) + _WATERMARK_SECONDS:
            self._publish(folder, mark)
        return shipped

    def _publish(self, folder: SpoolFolder, mark: Watermark) -> None:
        if mark.closed and self._published.get(folder.spool_id) == float("inf"):
            return
        self._await(self._send(folder.spool_id, b"", watermark_headers(mark)))
        self._published[folder.spool_id] = float("inf") if mark.closed else mark.at
        if mark.closed and folder.remove_if_done():
            del self._published[folder.spool_id]

    def _ship_segment(self, folder: SpoolFolder, segment: SealedSegment) -> int:
        """Sends what was not shipped; the last sequence, when the topic has all of it. Raises `KafkaError`."""
        previous = folder.shipped()
        waiting: deque[Any] = deque()
        for sequence, payload in folder.read(segment, previous):
            parts = split(payload, self._topic.max_record_bytes)
            for part, value in enumerate(parts):
                place = EventPlace(sequence, previous, part, len(parts))
                waiting.append(self._send(folder.spool_id, value, event_headers(place)))
            while len(waiting) > _IN_FLIGHT:
                self._await(waiting.popleft())
            previous = sequence
        while waiting:
            self._await(waiting.popleft())
        return previous

    # -- the producer

    def _make_producer(self) -> Any:
        return KafkaProducer(
            bootstrap_servers=self._settings.bootstrap.split(","),
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            batch_size=min(256 << 10, self._topic.max_record_bytes),
            compression_type="zstd",
            delivery_timeout_ms=_FOR_EVER_MS,
            max_request_size=self._topic.max_record_bytes + RESERVE,
            max_block_ms=10_000,
            reconnect_backoff_max_ms=2_000,
            allow_auto_create_topics=False,
        )

    def _send(self, spool_id: str, value: bytes, headers: Headers) -> Any:
        partition = partition_of(spool_id, self._topic.partitions)
        while True:
            try:
                return self._producer.send(
                    self._settings.topic, value, key=spool_id.encode(), headers=headers, partition=partition
                )
            except KafkaTimeoutError:  # no metadata, or no room to buffer: the broker is away
                if self._stop.is_set():
                    raise Stopped from None

    def _await(self, future: Any) -> None:
        """Returns when the broker acknowledged it, however long that takes."""
        for second in itertools.count(1):
            try:
                future.get(timeout=1.0)
                return
            except KafkaTimeoutError:
                if self._stop.is_set():
                    raise Stopped from None
                if second % 30 == 10:
                    logger.warning("no acknowledgement for %d s: the spools grow until the broker is back", second)


def main() -> None:
    """The process."""
    defaults = LogSettings(kind="kafka")
    parser = argparse.ArgumentParser(prog="ingest.forwarder", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spool", type=Path, required=True, help="the folder of the spools")
    parser.add_argument("--bootstrap", default=defaults.bootstrap, help="HOST:PORT of brokers, separated by commas")
    parser.add_argument("--topic", default=defaults.topic)
    parser.add_argument("--partitions", type=int, default=defaults.partitions, help="of a topic that is made")
    parser.add_argument("--replication", type=int, default=defaults.replication, help="of a topic that is made")
    parser.add_argument("--retention-days", type=float, default=defaults.retention_days, help="of a topic that is made")
    parser.add_argument("--max-record-bytes", type=int, default=defaults.max_record_bytes)
    options = parser.parse_args()
    structured()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it tells of every attempt to connect
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    values = {name: value for name, value in vars(options).items() if name != "spool"}
    try:
        Forwarder(options.spool, LogSettings(kind="kafka", **values), stop).run()
    except LogError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
