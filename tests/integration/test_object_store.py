"""The lake in a bucket of a real S3 server: landed, joined, frozen, looked after and forgotten as in a folder."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ingest.commits import commit
from ingest.config import LakeSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest
from ingest.datasets import CANDIDATE
from ingest.lake import FEEDBACK, SCHEMAS, TURNS, LakeError, open_table
from ingest.land import land
from ingest.receipts import Receipts
from ingest.refreeze import NotReproducible, refreeze
from ingest.upkeep import upkeep
from tests import lakes
from tests.forgetting import mentions
from tests.integration.test_forget import LOG, PEOPLE, START, Home, judged, subject, turn, turn_id, words
from tests.s3 import SECRET, Store

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bucket(store: Store) -> Iterator[Path]:
    """The folder of a bucket, whose credentials are in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        folder = store.buckets / "everloop"
        folder.mkdir()
        yield folder


class Stored(Home):
    """A home folder with its lake in the bucket."""

    def __init__(self, root: Path, bucket: Path) -> None:
        super().__init__(root)
        self.lake = f"s3://{bucket.name}/{root.name}/the läke"
        self.objects = bucket / root.name / "the läke"

    def write_turns(self, numbers: range) -> None:
        self.write(*(event(name, number) for name in PEOPLE for number in numbers for event in (turn, judged)))


@pytest.fixture
def home(tmp_path: Path, bucket: Path) -> Stored:
    return Stored(tmp_path, bucket)


def everybody(numbers: range) -> list[str]:
    return sorted(turn_id(name, number) for name in PEOPLE for number in numbers)


def test_of_two_commits_through_one_version_the_second_is_refused(home: Stored) -> None:
    first, second = (open_table(home.lake, TURNS) for _ in range(2))
    rows = SCHEMAS[TURNS].empty_table()
    commit(first, rows, {"spool": 1}, time.time())
    with pytest.raises(CommitFailedError):
        commit(second, rows, {"spool": 1}, time.time())
    assert open_table(home.lake, TURNS).version() == 1


def test_landers_at_once_land_each_event_once(home: Stored) -> None:
    for at in range(0, 24, 4):
        home.write_turns(range(at, at + 4))
    lakes.thrice_at_once(lambda: land(log=LOG, spool=home.spool, lake=home.lake))
    assert home.rows(TURNS, "turn_id") == home.rows(FEEDBACK, "target_id") == everybody(range(24))


def test_a_dataset_is_frozen_and_frozen_again_after_upkeep(home: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        lakes.land(home.lake, TURNS, lakes.turn(f"t{number}", policy="helper", finished_at=START + number))
        lakes.land(home.lake, FEEDBACK, lakes.feedback(f"t{number}", received_at=START + number + 2))
    home.freeze("d1", START + 100)
    manifest = read_manifest(home.datasets / "helper" / "d1", DatasetManifest, CANDIDATE)
    assert len(manifest.pairs) == 8

    vacuum = DeltaTable.vacuum
    monkeypatch.setattr(DeltaTable, "vacuum", lambda table, hours, **options: vacuum(table, 0, **options))
    before = len(list((home.objects / TURNS).glob("*.parquet")))
    upkeep(home.lake, LakeSettings(), START + 200, datasets=home.datasets)
    assert len(open_table(home.lake, TURNS).file_uris()) == 1
    assert len(list((home.objects / TURNS).glob("*.parquet"))) == before + 1, "a dataset names the files of before"
    assert refreeze(manifest, lake=home.lake, datasets=home.datasets, into=home.root / "again") == manifest.rows

    upkeep(home.lake, LakeSettings(), START + 200)
    assert len(list((home.objects / TURNS).glob("*.parquet"))) == 1
    with pytest.raises(NotReproducible, match="8 of the 8 files"):
        refreeze(manifest, lake=home.lake, datasets=home.datasets, into=home.root / "again")
    assert home.rows(TURNS, "turn_id") == [f"t{number}" for number in range(8)]


def test_nothing_of_a_forgotten_subject_is_left_in_the_bucket(home: Stored) -> None:
    for at in (1, 4):
        home.write_turns(range(at, at + 3))
        home.land()
    assert {file.partition("/")[0] for file, _ in mentions(home.objects, words("anna"))} == {TURNS, FEEDBACK}
    asked = Receipts(home.receipts).request("subject", subject("anna"))
    assert home.erase(asked.receipt_id, patience=60.0).settled
    assert mentions(home.objects, words("anna")) == mentions(home.root, words("anna")) == set()
    home.write_turns(range(1, 8))
    home.land()
    assert set(home.rows(TURNS, "subject")) == {subject("ben"), subject("carl")}
    assert mentions(home.objects, words("anna")) == set()
    assert home.rows(TURNS, "turn_id").count(turn_id("ben", 3)) == 2, "sent again by another spool"


def test_a_bucket_that_does_not_exist_is_told(bucket: Path) -> None:
    with pytest.raises(LakeError, match=r"no bucket of this name\. Make it there"):
        open_table(f"s3://{bucket.name}-without-one/lake", TURNS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "another", "credentials"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "AWS_ENDPOINT_URL"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_without_its_secrets(
    home: Stored, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LakeError, match=said) as raised:
        open_table(home.lake, TURNS)
    assert not {SECRET, "another"} & set(str(raised.value).split())
