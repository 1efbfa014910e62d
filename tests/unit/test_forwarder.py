"""What the forwarder does about a broker that refuses, one record or all, or lets one partition wait: with a stand-in.

The stand-in is as strict as a producer of kafka-python: after a refusal it is of no use any more, and whatever was
under way fails with it.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.errors import InvalidRecordError, KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError
from kafka.future import Future

from ingest import forwarder as module
from ingest.config import LogSettings
from ingest.contracts.errors import ContractError
from ingest.contracts.events import decode_event, encode_event
from ingest.forwarder import Forwarder, TopicTrouble
from ingest.kafka_log import Chain
from ingest.kafka_topic import EventPlace, TopicInfo, parse_headers, partition_of
from ingest.refused import forget_refused, refused_files, send_again
from ingest.spool import Spool, folders
from tests.log_events import turn

PARTITIONS = 4


class _Future(Future):
    def get(self, timeout: float) -> None:
        if not self.is_done:
            raise KafkaTimeoutError
        if self.failed():
            raise self.exception


class Broker:
    """What the topic took, and the rules by which it refuses (an error) or is silent about a partition."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int, EventPlace | object, bytes]] = []
        self.refuses: Callable[[bytes], type[KafkaError] | None] = lambda value: None
        self.silent: set[int] = set()

    def events(self) -> dict[str, list[bytes]]:
        """The events of each spool as a reader gives them: in order, each once."""
        chain, found = Chain(lambda spool_id: 0), {}
        for spool_id, _, place, value in self.taken:
            if isinstance(place, EventPlace) and chain.take(spool_id, place, headless=False):
                found.setdefault(spool_id, []).append(value)
        assert chain.waiting == set(), "nobody waits for a record"
        return found


class Producer:
    """Batches what is sent until it is asked about; one refused record fails its batch, and all after."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._fatal = broker, None

    def send(self, topic: str, value: bytes, *, key: bytes, headers: list, partition: int) -> Future:
        future = _Future()
        refusal = self._fatal or self._broker.refuses(value)
        if refusal is not None:
            self._fatal = refusal
            return future.failure(refusal())
        if partition not in self._broker.silent:
            self._broker.taken.append((key.decode(), partition, parse_headers(headers), value))
            future.success(None)
        return future

    def close(self, timeout: float) -> None:
        self._fatal = InvalidRecordError


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker()
    monkeypatch.setattr(module, "ensure_topic", lambda settings: TopicInfo(PARTITIONS, 1 << 20))
    monkeypatch.setattr(Forwarder, "_make_producer", lambda self: Producer(found))
    return found


def fill(root: Path, *names: str) -> str:
    """A closed spool of turns with these names."""
    spool = Spool.open(root)
    spool.append_sync([turn(name) for name in names])
    spool.close()
    return spool.spool_id


def forward(root: Path, tries: int = 1) -> list[KafkaError | TopicTrouble]:
    """Passes, with a new producer after each failure, as `run` does; the failures."""
    forwarder, failures = Forwarder(root, LogSettings(kind="kafka"), threading.Event(), every=60.0), []
    for _ in range(tries):
        forwarder.connect()
        try:
            forwarder.once()
            forwarder.once()
        except (KafkaError, TopicTrouble) as error:
            failures.append(error)
        else:
            break
        finally:
            forwarder.close()
    return failures


def names_of(events: list[bytes]) -> list[str]:
    """Turn ids; `lost` where there is none."""
    found = []
    for event in events:
        try:
            found.append(decode_event(event).turn_id)  # type: ignore[union-attr]
        except ContractError as error:
            found.append("lost" if "broker refused it" in str(error) else str(error))
    return found


def test_one_refused_record_is_kept_beside_and_the_rest_goes_on(broker: Broker, tmp_path: Path):
    names = [f"t{i}" for i in range(50)]
    first, second = fill(tmp_path, *names), fill(tmp_path, "x", "y")
    broker.refuses = lambda value: InvalidRecordError if b"t20" in value else None
    assert 0 < len(forward(tmp_path, tries=10)) < 10
    events = broker.events()
    assert names_of(events[first]) == ["lost" if name == "t20" else name for name in names]
    assert names_of(events[second]) == ["x", "y"]
    assert list(folders(tmp_path)) == [], "shipped spools go"
    [kept] = refused_files(tmp_path)
    assert kept.name == f"{first}-{21:016d}"

    broker.refuses = lambda value: None
    assert send_again(tmp_path) == 1
    assert refused_files(tmp_path) == []
    assert forward(tmp_path) == []
    [again] = broker.events().keys() - {first, second}
    assert names_of(broker.events()[again]) == ["t20"]


def test_what_was_refused_or_damaged_before_is_noted_beside_what_was_shipped(broker: Broker, tmp_path: Path):
    fill(tmp_path, "t1", "t2", "t3")
    [folder] = folders(tmp_path)
    (folder.path / "keeps it").touch()
    [segment] = folder.sealed()
    segment.path.write_bytes(segment.path.read_bytes().replace(b"t3", b"T3"))
    broker.refuses = lambda value: InvalidRecordError if b"t1" in value else None
    forward(tmp_path, tries=10)
    assert (folder.shipped(), set((folder.path / "lost").read_text().split())) == (3, {"1", "3"})


def test_sending_again_twice_is_sending_once(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path, "a")
    broker.refuses = lambda value: InvalidRecordError if encode_event(turn("a")) == value else None
    forward(tmp_path, tries=10)
    [kept] = refused_files(tmp_path)
    content = kept.read_bytes()
    send_again(tmp_path)
    [spool] = [folder.spool_id for folder in folders(tmp_path)]
    kept.write_bytes(content)  # it crashed before it removed the file
    send_again(tmp_path)
    assert [folder.spool_id for folder in folders(tmp_path)] == [spool]


def test_a_topic_that_takes_nothing_is_waited_for_and_nothing_is_set_aside(broker: Broker, tmp_path: Path):
    spool = fill(tmp_path, "a", "b")
    broker.refuses = lambda value: TopicAuthorizationFailedError
    failures = forward(tmp_path, tries=5)
    assert len(failures) == 5
    assert isinstance(failures[-1], TopicTrouble)
    assert refused_files(tmp_path) == []
    broker.refuses = lambda value: None
    assert forward(tmp_path) == []
    assert names_of(broker.events()[spool]) == ["a", "b"]


def test_many_refused_records_are_each_kept(broker: Broker, tmp_path: Path):
    spool = fill(tmp_path, *(f"t{i}" for i in range(30)))
    broker.refuses = lambda value: InvalidRecordError if value.count(b"t1") else None
    forward(tmp_path, tries=20)
    assert names_of(broker.events()[spool]).count("lost") == 11
    assert len(refused_files(tmp_path)) == 11
    assert forget_refused(tmp_path, lambda payload: names_of([payload])[0] in ("t10", "t12", "t20")) == 2
    assert len(refused_files(tmp_path)) == 9


def test_a_partition_that_is_silent_holds_up_its_own_spools_only(broker: Broker, tmp_path: Path):
    spools = [fill(tmp_path, f"t{i}") for i in range(8)]
    stuck = partition_of(sorted(spools)[0], PARTITIONS)
    broker.silent = {stuck}
    stop = threading.Event()
    forwarder = Forwarder(tmp_path, LogSettings(kind="kafka"), stop, every=0.01)
    running = threading.Thread(target=forwarder.run)
    running.start()
    free = {spool for spool in spools if partition_of(spool, PARTITIONS) != stuck}
    later = fill(tmp_path, "later")
    while partition_of(later, PARTITIONS) == stuck:
        later = fill(tmp_path, "later")
    wanted = free | {later}
    end = threading.Event()
    for _ in range(2000):
        if wanted <= broker.events().keys():  # a watermark may come before: `later` was filled while others shipped
            break
        end.wait(0.01)
    stop.set()
    running.join()
    assert wanted <= broker.events().keys()
    assert all(partition_of(spool, PARTITIONS) != stuck for spool in broker.events())


def test_an_event_in_parts_has_one_predecessor(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spool = fill(tmp_path, "a", "b", "c")
    monkeypatch.setattr(module, "ensure_topic", lambda settings: TopicInfo(PARTITIONS, 300))
    forward(tmp_path)
    places = [place for _, _, place, _ in broker.taken if isinstance(place, EventPlace)]
    assert {place.parts for place in places} == {2}
    assert [(place.previous, place.sequence, place.part) for place in places] == [
        (previous, previous + 1, part) for previous in range(3) for part in range(2)
    ]
    assert {spool_id for spool_id, *_ in broker.taken} == {spool}


def test_a_spool_stays_in_its_partition_when_the_topic_gets_more(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spool = Spool.open(tmp_path, segment_seconds=0.05)
    spool.append_sync([turn("a")])
    while not spool.folder.sealed():
        threading.Event().wait(0.01)
    forward(tmp_path)
    spool.append_sync([turn("b")])
    spool.close()
    monkeypatch.setattr(module, "ensure_topic", lambda settings: TopicInfo(97, 1 << 20))
    forward(tmp_path)
    assert names_of(broker.events()[spool.spool_id]) == ["a", "b"]
    assert len({partition for _, partition, *_ in broker.taken}) == 1


def test_a_spool_that_cannot_be_read_holds_up_no_other(broker: Broker, tmp_path: Path):
    spools = sorted([fill(tmp_path, "a"), fill(tmp_path, "b")])
    [segment] = [folder.sealed()[0] for folder in folders(tmp_path) if folder.spool_id == spools[0]]
    hidden = segment.path.with_name("away")
    segment.path.rename(hidden)
    segment.path.mkdir()  # SQLite cannot open a folder
    assert forward(tmp_path) == []
    assert list(broker.events()) == spools[1:]
    segment.path.rmdir()
    hidden.rename(segment.path)
    assert forward(tmp_path) == []
    assert set(broker.events()) == set(spools)
