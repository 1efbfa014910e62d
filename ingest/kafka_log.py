"""The log on Kafka: a pass from the committed offsets to where the topic ended when the pass began.

Landers of one lake are a consumer group, so that they share the topic's partitions. Offsets only bound what is read
again: which events are new is decided by (spool id, sequence) (`ingest.kafka_chain`), and whether they are in the lake
by the lake itself. So an offset is committed only once all before it has landed, what a lander has read and not landed
is forgotten when its partitions move, and one that comes back after it was given up for dead does no harm. The group's
name has the lake's id: another lake begins at the topic's start.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ingest.config import LakePlace, LogSettings
from ingest.contracts.events import Record
from ingest.kafka_chain import Chain, Parts
from ingest.kafka_topic import Watermark, parse_headers
from ingest.lake import TURNS, open_table
from ingest.log import BATCH_BYTES, BATCH_RECORDS, LogError
from ingest.watermarks import Mark, Marks

logger = logging.getLogger(__name__)

_POLL_MS = 500
_FETCH_WAIT_MS = 50
"""How long the broker may wait on partitions without news. A consumer has one request under way, so that those hold up
the others: by default for 500 ms."""
_SESSION_MS = 10_000
"""A lander that says nothing for so long is given up for dead, and the others get its partitions."""
_BATCH_MS = 120_000
"""One batch may take so long to land; then its lander is given up as well."""
_STEPS = 10
"""How long a spool waits for an earlier record goes by the times that the broker gave to records, in so many steps of
which a pass makes one at most. So neither a lander's clock, nor a jump of the broker's, nor hours in which it was down,
give up what is still to come: that would be lost."""
_NOTED_WAIT = re.compile(r"(\d{1,9}) (\d{1,12}\.\d{3})")
"""How a `_Wait` stands in an offset's metadata."""
_SILENT_SECONDS = 60.0
"""No record before the end for so long: the broker counts as gone."""


class KafkaLog:
    """A `LogReader` of a topic."""

    def __init__(self, settings: LogSettings, lake: LakePlace | None) -> None:
        """`lake`: whose landers share the topic; None reads all of it, and leaves no trace."""
        self._settings = settings
        self._lake = lake
        self._marks = Marks(lake, settings.topic) if lake else None
        self._partitions: set[int] = set()
        self.lost = 0

    def batches(self, after: Callable[[str], int]) -> Iterator[list[Record]]:
        """See `LogReader`. Raises `LogError` where no broker answers or the topic does not exist."""
        group = f"everloop-{open_table(self._lake, TURNS).metadata().id}" if self._lake else None
        try:
            consumer = KafkaConsumer(
                bootstrap_servers=self._settings.bootstrap.split(","),
                bootstrap_timeout_ms=10_000,
                group_id=group,
                session_timeout_ms=_SESSION_MS,
                max_poll_interval_ms=_BATCH_MS,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                fetch_max_bytes=BATCH_BYTES,
                fetch_max_wait_ms=_FETCH_WAIT_MS,
                max_partition_fetch_bytes=self._settings.max_record_bytes,
            )
        except KafkaError as error:
            raise LogError(f"no Kafka broker answers at {self._settings.bootstrap}: {error}") from error
        try:
            yield from self._read(consumer, after, group is not None)
        except KafkaError as error:
            raise LogError(f"topic {self._settings.topic} cannot be read: {error}") from error
        finally:
            consumer.close(autocommit=False)

    def watermark(self) -> float:
        """See `LogReader`; 0 where a partition has not been read to an end yet. Lost spools hold nothing back."""
        if self._marks is None:
            return 0.0
        partitions, spools = self._marks.read()
        read = [partitions[number].at if number in partitions else 0.0 for number in self._partitions]
        # One clock that is ahead, a gateway's or this one, must not declare all others lost.
        newest = min(time.time(), max((mark.at for mark in spools.values()), default=0.0))
        lost = newest - self._settings.lost_after_seconds
        living = [mark.at for mark in spools.values() if not mark.closed and mark.at > lost]
        return min([*read, *living]) if living else min([*read, newest], default=0.0)

    def _newest(self) -> float:
        """Up to when anything is known of any spool; 0 where nothing is."""
        spools = self._marks.read()[1] if self._marks else {}
        return max((mark.at for mark in spools.values()), default=0.0)

    def living(self) -> list[str]:
        """See `LogReader`."""
        spools = self._marks.read()[1] if self._marks else {}
        return [spool_id for spool_id, mark in spools.items() if not mark.closed]

    def _read(self, consumer: KafkaConsumer, after: Callable[[str], int], shared: bool) -> Iterator[list[Record]]:
        began = time.time()
        self._partitions = set(consumer.partitions_for_topic(self._settings.topic) or ())
        if not self._partitions:
            raise LogError(f"Kafka has no topic {self._settings.topic}: start the forwarder, it makes one")
        every = [TopicPartition(self._settings.topic, number) for number in sorted(self._partitions)]
        ends = consumer.end_offsets(every)
        mine = _Mine(consumer, after, self._settings.lost_after_seconds)
        if shared:
            consumer.subscribe([self._settings.topic], listener=mine)
        else:
            consumer.assign(every)
            consumer.seek_to_beginning(*every)
            mine.on_partitions_assigned(every)
        heard = time.monotonic()
        while not mine.reached(ends):
            polled = consumer.poll(timeout_ms=_POLL_MS, max_records=mine.room())
            if mine.moved:  # what is asked of the lake now must have all that was given
                yield []
            moved = mine.begin()
            if moved or polled:
                heard = time.monotonic()
            elif time.monotonic() > heard + _SILENT_SECONDS + (0 if mine.joined else _BATCH_MS / 1000):
                raise LogError(f"topic {self._settings.topic} gives no records before its end: is its broker up?")
            for messages in () if moved else polled.values():  # from where it stood before: they come again
                for message in messages:
                    mine.take(message)
            mine.rest(ends)
            if mine.full():
                yield mine.give({})
                heard = time.monotonic()  # the broker has said nothing while it landed: nobody asked
                self._save(mine, under_way=1)
        if mine.chain.waiting:
            waiting = len(mine.chain.waiting)
            logger.warning("%d spools on topic %s wait for an earlier record", waiting, self._settings.topic)
        # A fact that a clock which is ahead made would be false for days: of spools nothing is known that is newer.
        at = min(began, max(mine.newest, self._newest()))
        if batch := mine.give({number: Mark(at, False) for number in mine.complete()}):
            yield batch
        yield []
        self._save(mine, under_way=0)

    def _save(self, mine: "_Mine", under_way: int) -> None:
        """What was given has landed, but for so many batches: its facts, then its offsets."""
        while len(mine.given) > under_way:
            landed = mine.given.popleft()
            if self._marks is not None:
                self._marks.write(landed.complete, landed.marks, time.time())
                mine.commit(landed.offsets)
            self.lost += landed.lost


class _Given(NamedTuple):
    """What is true once a batch has landed, with all that was given before it."""

    complete: dict[int, Mark]
    marks: dict[str, Mark]
    offsets: dict[TopicPartition, OffsetAndMetadata]
    lost: int


class _Wait(NamedTuple):
    """That a partition waits for a record before the one at an offset. It stands in the group's committed offset."""

    at: int
    steps: int
    """How often the topic has gone on for a tenth of the time, each seen in a pass of its own."""
    last: float
    """By the topic's time (Unix seconds): where the next step begins."""


class _Mine(ConsumerRebalanceListener):
    """The partitions that this lander has now, and what was read of them and has not landed yet."""

    def __init__(self, consumer: KafkaConsumer, after: Callable[[str], int], lost_after: float) -> None:
        self._consumer = consumer
        self._after = after
        self._lost_after = lost_after
        self._largest = BATCH_BYTES // 16
        self.joined = self.moved = False
        """Whether it has partitions; whether `begin` is to be called."""
        self.batch: list[Record] = []
        self.marks: dict[str, Mark] = {}
        self.newest = 0.0
        """Of all marks that it took."""
        self.given: deque[_Given] = deque()
        """Batches of which nobody has said yet that they have landed."""
        self._forget()

    # -- which partitions

    def on_partitions_revoked(self, revoked: Any) -> None:
        """What was read and not landed is read again, by whoever gets the partition."""
        self._forget()
        self.joined = False

    def on_partitions_assigned(self, assigned: Any) -> None:
        """From the committed offsets; `begin` has the rest, once the consumer may be asked again."""
        self._forget()
        self.moved = self.joined = True

    def begin(self) -> bool:
        """After a rebalance, before its records are taken: of which partitions is the head gone? Whether it was one."""
        if not self.moved:
            return False
        self.moved = False
        partitions = list(self._consumer.assignment())
        self._consumer.resume(*partitions)
        begins, ends = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
        for partition in partitions:
            number, at, waits = partition.partition, *self._committed(partition)
            if at > ends[partition]:
                logger.error("topic %s ends before what was read of it: it was made anew", partition.topic)
                self._headless.add(number)
                at = begins[partition]
            elif at < begins[partition]:
                logger.error(
                    "%d records of partition %d were removed before they were read", begins[partition] - at, number
                )
                self._headless.add(number)
            elif waits is not None:
                self._waits[number] = waits = self._step(partition.topic, waits)
                if waits.steps >= _STEPS:
                    self._headless.add(number)
            # The consumer's own position runs ahead: it counts what it holds and has not given yet.
            self._next[number] = max(at, begins[partition])
            # Of a partition that it had before, it would go on after what was forgotten.
            self._consumer.seek(partition, self._next[number])
        return True

    def _committed(self, partition: TopicPartition) -> tuple[int, "_Wait | None"]:
        """Where the group stands, and how long it has waited there for an earlier record."""
        if self._consumer.config["group_id"] is None:
            return 0, None
        found = self._consumer.committed(partition, metadata=True)
        if not found:
            return 0, None
        noted = _NOTED_WAIT.fullmatch(found.metadata or "")
        # What another version noted is not understood: then the wait begins anew.
        return found.offset, _Wait(found.offset, int(noted[1]), float(noted[2])) if noted else None

    def _step(self, topic: str, waits: "_Wait") -> "_Wait":
        """One step on, where the topic has gone on for so long."""
        due = int((waits.last + self._lost_after / _STEPS) * 1000)
        every = {TopicPartition(topic, number): due for number in self._consumer.partitions_for_topic(topic)}
        found = [one.timestamp / 1000 for one in self._consumer.offsets_for_times(every).values() if one is not None]
        return _Wait(waits.at, waits.steps + 1, min(found)) if found else waits

    def reached(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether all that is to be read of them was."""
        mine = ((partition.partition, ends.get(partition, 0)) for partition in self._consumer.assignment())
        return self.joined and not self.moved and all(self._next[number] >= end for number, end in mine)

    def rest(self, ends: dict[TopicPartition, int]) -> None:
        """Asks no more of partitions of which all that is to be read was."""
        if self.joined and not self.moved:
            read = {p for p in self._consumer.assignment() if self._next[p.partition] >= ends.get(p, 0)}
            if read - self._resting:
                self._consumer.pause(*read)
                self._resting |= read

    def complete(self) -> list[int]:
        """Partitions of which nothing waits."""
        numbers = (partition.partition for partition in self._consumer.assignment())
        return [number for number in numbers if number not in self._held and not self._parts.needed(number)]

    # -- what was read

    def take(self, message: Any) -> None:
        """A record of the topic."""
        self._next[message.partition] = message.offset + 1
        place = parse_headers(message.headers)
        if place is None or message.key is None:
            logger.warning(
                "a record that no forwarder wrote: partition %d offset %d", message.partition, message.offset
            )
            return
        spool_id = message.key.decode()
        if isinstance(place, Watermark):
            if spool_id not in self.chain.waiting:
                self.marks[spool_id] = Mark(place.at, place.closed)
                self.newest = max(self.newest, place.at)
            return
        value, offset = message.value, message.offset
        self._largest = max(len(value), self._largest * 15 // 16)
        if place.parts > 1 and place.sequence > self.chain.seen(spool_id):
            whole = self._parts.join(spool_id, place, message)
            if whole is None:
                return
            value, offset = whole
        verdict = self.chain.take(spool_id, place, message.partition in self._headless)
        if verdict is None:
            held = (offset, message.timestamp / 1000)
            self._held[message.partition] = min(held, self._held.get(message.partition, held))
        if verdict:
            self._parts.forget(spool_id, place.sequence)
            self.batch.append(Record(spool_id, place.sequence, value))
            self._size += len(value)

    def room(self) -> int:
        """How many records to ask for: as many as the batch has room for, were they as large as the largest lately."""
        return max(1, min(BATCH_RECORDS - len(self.batch), (BATCH_BYTES - self._size) // max(1, self._largest)))

    def full(self) -> bool:
        """Whether it is time to land."""
        return len(self.batch) >= BATCH_RECORDS or self._size >= BATCH_BYTES

    def give(self, complete: dict[int, Mark]) -> list[Record]:
        """The batch, for landing; the next one begins. `complete`: partitions' marks that it makes true."""
        batch = self.batch
        self.given.append(_Given(complete, self.marks, self._offsets(), self.chain.lost))
        self.batch, self._size, self.marks, self.chain.lost = [], 0, {}, 0
        return batch

    def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where all was given."""
        offsets = {}
        for partition in self._consumer.assignment():
            number = partition.partition
            held, since = self._held.get(number, (self._next[number], 0.0))
            at = min([held, *self._parts.needed(number), self._next[number]])
            if number not in self._held:
                self._waits.pop(number, None)
            elif number not in self._waits or self._waits[number].at != at:
                self._waits[number] = _Wait(at, 0, since)
            waits = self._waits.get(number)
            offsets[partition] = OffsetAndMetadata(at, f"{waits.steps} {waits.last:.3f}" if waits else "", -1)
        return offsets

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Notes up to where all has landed."""
        try:
            self._consumer.commit(offsets)
        except KafkaError as error:  # given up for dead meanwhile: others read from where they are
            logger.info("offsets are not noted, and read again: %s", type(error).__name__)

    def _forget(self) -> None:
        self.chain, self._parts = Chain(self._after), Parts()
        self.batch, self._size, self.marks = [], 0, {}
        self.given.clear()
        self._next: dict[int, int] = {}
        """Partition → the offset after what was taken of it."""
        self._waits: dict[int, _Wait] = {}
        """Partition → where it waits for an earlier record."""
        self._held: dict[int, tuple[int, float]] = {}
        """Partition → the first offset that is to be read again, and when that record came to the topic."""
        self._headless: set[int] = set()
        self._resting: set[TopicPartition] = set()
        """Of which nothing more is asked."""
