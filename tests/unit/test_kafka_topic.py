"""What a topic must be like: each setting that differs is an error or a warning that says what to do."""

import pytest

from ingest.config import LogSettings
from ingest.kafka_topic import RESERVE, doubts, wanted
from ingest.log import LogError

SETTINGS = LogSettings(kind="kafka", replication=3)


def test_a_topic_as_it_is_made_raises_no_doubt():
    for replication in (1, 2, 3):
        settings = LogSettings(kind="kafka", replication=replication)
        assert doubts(settings, wanted(settings), settings.partitions, replication) == []
        assert wanted(settings)["min.insync.replicas"] == str(min(2, replication))


@pytest.mark.parametrize(
    ("name", "value", "replicas", "said"),
    [
        ("cleanup.policy", "compact,delete", 3, "compacted"),
        ("message.timestamp.type", "CreateTime", 3, "clocks"),
        ("unclean.leader.election.enable", "true", 3, "may lead"),
        ("max.message.bytes", str(RESERVE), 3, "takes no record"),
        ("min.insync.replicas", "2", 1, "takes nothing"),
    ],
)
def test_a_topic_that_would_lose_events_or_take_none_is_refused(name: str, value: str, replicas: int, said: str):
    with pytest.raises(LogError, match=said) as error:
        doubts(SETTINGS, wanted(SETTINGS) | {name: value}, 8, replicas)
    assert f"--add-config {name}={wanted(SETTINGS)[name]}" in str(error.value)


@pytest.mark.parametrize(
    ("change", "partitions", "replicas", "said"),
    [
        ({"retention.ms": "3600000"}, 8, 3, "retention_days, 7"),
        ({"retention.bytes": "1000"}, 8, 3, "retention.bytes=-1"),
        ({"min.insync.replicas": "1"}, 8, 3, "min.insync.replicas=2"),
        ({}, 8, 2, "replication is to be 3"),
        ({"max.message.bytes": "1000000"}, 8, 3, "parts"),
        ({}, 12, 3, "12 partitions"),
        ({"compression.type": "gzip"}, 8, 3, "compress again"),
    ],
)
def test_a_topic_that_differs_otherwise_is_told(change: dict[str, str], partitions: int, replicas: int, said: str):
    [sentence] = doubts(SETTINGS, wanted(SETTINGS) | change, partitions, replicas)
    assert said in sentence
    assert sentence.startswith("topic everloop ")


def test_what_only_matters_with_replicas_is_no_matter_without():
    settings = LogSettings(kind="kafka")
    assert doubts(settings, wanted(settings) | {"unclean.leader.election.enable": "true"}, 8, 1) == []
