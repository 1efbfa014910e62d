"""The forwarder: ships sealed segments of every spool here to Kafka, and removes what was acknowledged.

    python -m ingest.forwarder --spool FOLDER --bootstrap HOST:PORT --topic NAME

Each spool has a `Shipment`; all go forward together, so that none waits for another: not for a large backlog, nor for a
partition without a leader. Killed between an acknowledgement and its note, it ships again: whoever lands tells
duplicates by (spool id, sequence). A broker that is down costs disk, never an event: the producer retries for ever.

A producer that failed is replaced, and what was not acknowledged is sent again. Where the same spool fails again
without having got any further, its next events go one by one, each alone in a producer. One that is refused even so,
twice, while the partition takes another record, is refused for itself: `refused` keeps it, a `Lost` event takes its
place on the topic, and the spool goes on. If the partition takes nothing else either, the trouble is the topic's: wait.

An event above the topic's record limit is sent in parts, so that every event arrives whatever its size (decision 8).
Order within a spool is the idempotent producer's; should a batch be lost all the same, `previous` in the headers shows
the hole.
"""

import argparse
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from ingest.config import LogSettings
from ingest.contracts.events import Lost, encode_event
from ingest.contracts.process_logs import structured
from ingest.kafka_topic import RESERVE, Headers, TopicInfo, ensure_topic
from ingest.log import LogError
from ingest.refused import Refused, send_again, set_aside
from ingest.shipment import Shipment
from ingest.spool import SegmentUnavailable, adopt, folders, let_go

logger = logging.getLogger("ingest.forwarder")  # also when run as __main__

_BYTES_UNDER_WAY = 24 << 20
"""Sent and not yet acknowledged, of all spools together: the producer has no bound of its own."""
_FOR_EVER_MS = 2**31 - 1
_TURN_SECONDS = 0.003
"""Between two looks at what the broker acknowledged."""
_HOUSEKEEPING_SECONDS = 0.5
_SILENT_SECONDS = 30
_ONE_BY_ONE = 2000
"""Events that go alone after a second failure in the same place: more than a batch has of small ones."""
_ALONE_SECONDS = 20.0
"""How long one of them may take before its spool's turn is over."""
_BACK_OFF_SECONDS = 30.0
"""The longest wait after failures in a row."""


class Stopped(Exception):
    """Asked to stop while it waited for a broker. Nothing is lost: what was not acknowledged is still there."""


class TopicTrouble(Exception):
    """The broker takes nothing for this topic now, whatever it is."""


class Forwarder:
    """Ships the spools below `root`. One thread; `stop` may be set by another."""

    def __init__(self, root: Path, settings: LogSettings, stop: threading.Event, every: float = 0.5) -> None:
        """`every`: seconds between two looks for new segments."""
        self._root = root
        self._settings = settings
        self._stop = stop
        self._every = every
        self._shipments: dict[str, Shipment] = {}
        self._failed_at: dict[str, int] = {}
        """Spool → what it had acknowledged when it failed last."""
        self._alone_up_to: dict[str, int] = {}
        """Spool → its events up to here go one by one."""
        self._looked = self._housekept = 0.0
        self._topic: TopicInfo
        self._producer: Any = None
        self._lone_producer: Any = None

    def run(self) -> None:
        """Ships until stopped; waits for a broker as long as it takes. Raises `LogError` about the topic."""
        failures, connected = 0, 0.0
        while not self._stop.is_set():
            try:
                self.connect()
                connected = time.monotonic()
                while not self._stop.wait(self._every):
                    self.once()
            except Stopped:
                logger.info("stopped while waiting for the broker")
            except (KafkaError, TopicTrouble) as error:
                failures = 1 if time.monotonic() - connected > 2 * _BACK_OFF_SECONDS else failures + 1
                logger.error("connecting anew: %s", error if isinstance(error, TopicTrouble) else type(error).__name__)
                self._stop.wait(min(0.25 * 2**failures, _BACK_OFF_SECONDS))
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
        """Lets go of the producers, and of what was sent and not acknowledged."""
        for shipment in self._shipments.values():
            shipment.rewind()
        for producer in (self._producer, self._lone_producer):
            if producer is not None:
                producer.close(timeout=1)
        self._producer = self._lone_producer = None

    def once(self) -> int:
        """Ships all that is sealed, returning when it is acknowledged; how many segments that was.

        Raises `KafkaError` or `TopicTrouble`: connect anew.
        """
        shipped, told = 0, time.monotonic()
        self._look()
        while not all(shipment.idle for shipment in self._shipments.values()):
            before = self._finished()
            moved = self._turn()
            if self._stop.wait(0.0 if moved else _TURN_SECONDS):
                raise Stopped
            if moved:
                told = time.monotonic()
            elif time.monotonic() - told > _SILENT_SECONDS:
                logger.warning("no acknowledgement for %d s: the spools grow until the broker is back", _SILENT_SECONDS)
                told = time.monotonic()
            shipped += self._finished() - before
            if time.monotonic() - self._looked >= self._every:
                self._look()
        return shipped

    def _finished(self) -> int:
        return sum(shipment.finished for shipment in self._shipments.values())

    def _look(self) -> None:
        """Adopts dead spools, and takes up what any spool has sealed."""
        self._looked = time.monotonic()
        if self._looked - self._housekept >= _HOUSEKEEPING_SECONDS:
            self._housekept = self._looked
            adopt(self._root)
            let_go(self._root, time.time() - self._settings.retention_days * 86_400)
        for folder in folders(self._root):
            try:
                if folder.spool_id not in self._shipments:
                    self._shipments[folder.spool_id] = Shipment(folder, self._topic.partitions)
                if self._shipments[folder.spool_id].idle:
                    self._shipments[folder.spool_id].look()
            except OSError as error:
                logger.error("spool %s waits: %s", folder.spool_id, error)
        self._shipments = {name: shipment for name, shipment in self._shipments.items() if not shipment.done}

    def _turn(self) -> bool:
        """Takes every spool forward as far as it goes without waiting; tells whether any moved.

        Raises the `KafkaError` of the last that failed.
        """
        active = [shipment for shipment in self._shipments.values() if not shipment.idle]
        share = _BYTES_UNDER_WAY // max(1, len(active))
        moved, failure = False, None
        for shipment in active:
            try:
                moved |= shipment.collect()
                if shipment.folder.spool_id in self._alone_up_to:
                    moved |= self._go_alone(shipment)
                else:
                    moved |= shipment.fill(self._send, self._topic.max_record_bytes, share)
            except (SegmentUnavailable, OSError) as error:
                logger.error("spool %s waits: %s", shipment.folder.spool_id, error)
                shipment.rewind()
            except KafkaError as error:
                self._note_failure(shipment)
                failure = error
        if failure is not None:
            raise failure
        return moved

    def _note_failure(self, shipment: Shipment) -> None:
        spool_id, at = shipment.folder.spool_id, shipment.acknowledged
        if self._failed_at.get(spool_id) == at:
            self._alone_up_to[spool_id] = at + _ONE_BY_ONE
        self._failed_at[spool_id] = at

    # -- events that go alone

    def _go_alone(self, shipment: Shipment) -> bool:
        """Ships the spool's next event by itself, or sets it aside; tells whether the spool moved."""
        spool_id = shipment.folder.spool_id
        if (following := shipment.following()) is None or following[0] > self._alone_up_to[spool_id]:
            del self._alone_up_to[spool_id]
            shipment.rewind()
            return True
        sequence, payload = following
        records = shipment.records(self._topic.max_record_bytes, sequence, payload)
        try:
            refusal = self._deliver(shipment, records) and self._deliver(shipment, records)
            if refusal is not None:
                self._refuse(shipment, sequence, payload, type(refusal).__name__)
        except KafkaTimeoutError:
            shipment.rewind()
            return False
        shipment.pass_by(sequence)
        return True

    def _deliver(self, shipment: Shipment, records: list[tuple[bytes, Headers]]) -> KafkaError | None:
        """Sends an event's records with nothing else beside them; what the broker says against it.

        Raises `KafkaTimeoutError` where it says nothing.
        """
        if self._lone_producer is None:
            self._lone_producer = self._make_producer()
        end = time.monotonic() + _ALONE_SECONDS
        place = {"key": shipment.folder.spool_id.encode(), "partition": shipment.partition}
        try:
            for value, headers in records:
                future = self._lone_producer.send(self._settings.topic, value, headers=headers, **place)
                future.get(timeout=max(0.0, end - time.monotonic()))
        except KafkaError as error:
            self._lone_producer.close(timeout=1)
            self._lone_producer = None
            if isinstance(error, KafkaTimeoutError):
                raise
            return error
        return None

    def _refuse(self, shipment: Shipment, sequence: int, payload: bytes, reason: str) -> None:
        """Sets an event aside. Raises `TopicTrouble` where the broker takes nothing in its place."""
        kept = set_aside(self._root, Refused(shipment.folder.spool_id, sequence, reason, time.time(), payload))
        gone = encode_event(Lost(f"the broker refused it: {reason}; it is kept beside the spools"))
        against = self._deliver(shipment, shipment.records(self._topic.max_record_bytes, sequence, gone))
        if against is not None:
            kept.unlink()
            raise TopicTrouble(f"topic {self._settings.topic} takes nothing now: {type(against).__name__}")
        shipment.folder.note_lost(sequence)
        logger.error(
            "the broker refused sequence %d of spool %s, %d bytes: %s; kept as %s: see --send-again",
            *(sequence, shipment.folder.spool_id, len(payload), reason, kept),
        )

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

    def _send(self, spool_id: str, partition: int, value: bytes, headers: Headers) -> Any:
        while True:
            try:
                return self._producer.send(
                    self._settings.topic, value, key=spool_id.encode(), headers=headers, partition=partition
                )
            except KafkaTimeoutError:  # no metadata: the broker is away
                if self._stop.is_set():
                    raise Stopped from None


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
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two looks for what is to be shipped")
    parser.add_argument(
        "--send-again", action="store_true", help="put what a broker refused before back on its way, and end"
    )
    options = parser.parse_args()
    structured()
    if options.send_again:
        logger.info("%d events are on their way again", send_again(options.spool))
        return
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it tells of every attempt to connect
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    values = {name: value for name, value in vars(options).items() if name in LogSettings.model_fields}
    try:
        Forwarder(options.spool, LogSettings(kind="kafka", **values), stop, options.every).run()
    except LogError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
