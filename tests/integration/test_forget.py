"""Forgetting somebody: nothing of theirs is left in any file, nothing of anybody else's is gone, and it stays so."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest import forget, gate, successors
from ingest.config import AttributionSettings, DatasetSettings, GateSettings, LakeSettings, LogSettings, RewardSettings
from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.feedback import Feedback, Kind
from ingest.contracts.files import read_manifest
from ingest.contracts.ids import keyed_hash
from ingest.contracts.turn import Finish, Span, Turn
from ingest.datasets import CANDIDATE
from ingest.freeze import freeze
from ingest.lake import ERASURES, FEEDBACK, TURNS, read
from ingest.land import land
from ingest.receipts import Receipts
from ingest.spool import Spool
from tests.forgetting import mentions
from tests.lakes import read_rows

pytestmark = pytest.mark.integration

SECRET = b"the installation's"
PEOPLE = ("anna", "ben", "carl")
LOG = LogSettings(kind="embedded", segment_seconds=0.2)
START = 1_700_000_000.0


def subject(name: str) -> str:
    return keyed_hash(SECRET, "subject", name)


def session(name: str) -> str:
    return keyed_hash(SECRET, "session", name)


def turn_id(name: str, number: int) -> str:
    return f"chatcmpl-{keyed_hash(SECRET, 'turn', f'{name} {number}')}"


def turn(name: str, number: int, **changes: Any) -> Turn:
    """A turn of somebody, whose texts say whose they are. Turn 0 is in a session that everybody takes part in."""
    values: dict[str, Any] = {
        "turn_id": turn_id(name, number),
        "policy": "helper",
        "dialect": "chat",
        "key_id": "key-1",
        "subject": subject(name),
        "session_id": session("everybody" if number == 0 else f"{name} alone"),
        "prompt_ids": pack_ids([1, 2, 3]),
        "output_ids": pack_ids([4, 5]),
        "logprobs": pack_logprobs([-0.5, -0.25]),
        "weight_versions": (Span("base", 0, 2),),
        "sampling": {"temperature": 1.0},
        "finish": Finish.STOP,
        "engine_id": "engine",
        "started_at": START + number,
        "finished_at": START + number + 1,
        "request": json.dumps({"messages": [{"role": "user", "content": f"question of {name}"}]}),
        "answer": json.dumps({"choices": [{"message": {"content": f"answer to {name}"}}]}),
        "trainable": True,
    }
    return Turn(**values | changes)


def judged(name: str, number: int, **changes: Any) -> Feedback:
    """What an application, without naming the user, says about a turn."""
    values: dict[str, Any] = {
        "feedback_id": f"fb-{keyed_hash(SECRET, 'feedback', f'{name} {number}')}",
        "target": "turn",
        "target_id": turn_id(name, number),
        "kind": Kind.ACCEPT if number % 2 else Kind.REJECT,
        "key_id": "key-1",
        "occurred_at": START + number + 2,
        "received_at": START + number + 2,
    }
    return Feedback(**values | changes)


def words(name: str, turns: int = 20) -> list[str]:
    """All by which somebody could be known."""
    ids = [turn_id(name, number) for number in range(turns)]
    said = [f"question of {name}", f"answer to {name}", f"edit of {name}"]
    return [subject(name), session(f"{name} alone"), *ids, *said]


class Home:
    """The parts of a home folder that `ingest.forget` looks after."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spool, self.lake, self.datasets, self.docs = (
            root / name for name in ("spool", "lake", "datasets", "datadocs")
        )
        self.receipts = root / "receipts.db"

    def write(self, *events: Any, close: bool = True) -> Spool:
        spool = Spool.open(self.spool, segment_seconds=0.2)
        spool.append_sync(events)
        if close:
            spool.close()
        return spool

    def land(self) -> Any:
        return land(log=LOG, spool=self.spool, lake=self.lake)

    def freeze(self, dataset_id: str, now: float) -> None:
        freeze(
            lake=self.lake,
            datasets=self.datasets,
            policy="helper",
            dataset_id=dataset_id,
            settings=DatasetSettings(),
            attribution=AttributionSettings(),
            rewards=RewardSettings(),
            now=now,
            watermark=now,
        )

    def gate(self, dataset_id: str, **settings: Any) -> None:
        gate.gate(
            datasets=self.datasets,
            policy="helper",
            dataset_id=dataset_id,
            lake=self.lake,
            settings=GateSettings(min_rows=4, **settings),
            suites=self.root / "suites.toml",
            docs=self.docs,
        )

    def erase(self, receipt_id: str, patience: float = 5.0) -> forget.Reached:
        return forget.erase(
            receipts=self.receipts,
            receipt_id=receipt_id,
            log=LOG,
            spool=self.spool,
            lake=self.lake,
            settings=LakeSettings(),
            datasets=self.datasets,
            docs=self.docs,
            scratch=self.root / "run",
            patience=patience,
        )

    def rows(self, table: str, column: str) -> list[Any]:
        return sorted(read(self.lake, table).to_table(columns=[column])[column].to_pylist())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Three people, one dataset that its gate let pass and one that it stopped, with pages that name their turns."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.write(*(turn(name, number) for name in PEOPLE for number in range(8)))
    of_everybody = {"target": "session", "kind": Kind.OUTCOME, "value": 0.5}
    home.write(
        *(judged(name, number) for name in PEOPLE for number in range(6)),
        *(judged(name, 6, kind=Kind.EDIT, text=f"edit of {name}") for name in PEOPLE),
        *(judged(name, 18, target_id=session(f"{name} alone"), **of_everybody) for name in PEOPLE),
        judged("everybody", 19, target_id=session("everybody"), **of_everybody),
    )
    home.land()
    now = START + 100
    home.freeze("d1", now)
    home.gate("d1")
    home.write(
        *(turn(name, number) for name in PEOPLE for number in range(8, 16)),
        *(judged(name, number) for name in PEOPLE for number in range(8, 16)),
    )
    home.land()
    home.freeze("d2", now)
    with pytest.raises(gate.GateFailed):
        home.gate("d2", max_age_seconds=80.0)
    return home


@pytest.fixture
def home(filled: Home, tmp_path: Path) -> Home:
    """A copy, for a test to spoil."""
    shutil.copytree(filled.root, tmp_path / "home")
    return Home(tmp_path / "home")


def everything_but_anna(home: Home, evaluated: Sequence[str] = ()) -> None:
    """`evaluated`: whose questions an evaluation asked."""
    others = [name for name in PEOPLE if name != "anna"]
    theirs = [turn_id(name, number) for name in others for number in range(16)]
    assert home.rows(TURNS, "turn_id") == sorted(theirs + [turn_id(f"evaluation {name}", 1) for name in evaluated])
    of_turns = [turn_id(name, number) for name in others for number in [*range(7), *range(8, 16)]]
    of_sessions = [session("everybody"), *(session(f"{name} alone") for name in others)]
    assert home.rows(FEEDBACK, "target_id") == sorted(of_turns + of_sessions)
    for dataset_id, manifest in (("d1", "manifest.json"), ("d2", CANDIDATE)):
        rows = read_rows(home.datasets / "helper" / dataset_id, manifest)
        assert rows.num_rows
        assert set(rows["subject"].to_pylist()) == {subject(name) for name in others}
    for name in others:
        found = {file.partition("/")[0] for file, _ in mentions(home.root, words(name))}
        assert found >= {"spool", "lake", "datasets"}


def crash(home: Home) -> None:
    """What writers leave that are killed before they gave a file its name."""
    for name in (
        "lake/turns/part-00000.zstd.parquet#1",
        "lake/feedback/_delta_log/00000000000000000099.json#12",
        "datasets/helper/d2/.candidate.json.7.partial",
        "datasets/helper/d2/join-1/spilled",
        "run/join-2/spilled",
        f"spool/.refused/.{'0' * 32}-1.7.partial",
    ):
        path = home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"question of anna, {turn_id('anna', 1)}")
        os.utime(path, (START, START))


def test_nothing_of_a_forgotten_subject_is_left_in_any_file(home: Home) -> None:
    crash(home)
    before = read_manifest(home.datasets / "helper" / "d1", DatasetManifest)
    assert {file.partition("/")[0] for file, _ in mentions(home.root, words("anna"))} == {
        *("spool", "lake", "datasets", "datadocs", "run")
    }
    asked = Receipts(home.receipts).request("subject", subject("anna"))
    reached = home.erase(asked.receipt_id)
    assert (reached.known, reached.settled, reached.datasets) == (True, True, (("helper", "d1"),))
    assert reached.removed["turns"] == 16
    assert mentions(home.root, words("anna")) == set()
    everything_but_anna(home)

    site = home.docs / "site"
    links = re.findall(r'href="(\w[^":]*\.html)"', (site / "index.html").read_text())
    assert links
    assert [link for link in links if not (site / link).exists()] == [], "the first page links what is left"

    after = read_manifest(home.datasets / "helper" / "d1", DatasetManifest)
    assert (after.dataset_id, after.cut_at, after.lake_versions) == ("d1", before.cut_at, before.lake_versions)
    [succession] = after.erased
    assert (succession.erasure_id, succession.before_sha256) == (asked.receipt_id, before.rows.sha256)
    assert succession.rows == len(before.pairs) - len(after.pairs) > 0


def test_what_comes_later_does_not_land_either(home: Home) -> None:
    asked = Receipts(home.receipts).request("subject", subject("anna"))
    home.erase(asked.receipt_id)
    # The log again from its start, as a topic is replayed; and what is said later, by her and about her.
    home.write(*(turn(name, number) for name in ("anna", "ben") for number in range(8)))
    home.write(
        turn("anna", 17, session_id=session("everybody")),
        judged("anna", 3, kind=Kind.EDIT, text="edit of anna"),
        judged("anna", 17, kind=Kind.EDIT, text="edit of anna", subject=subject("ben")),
        judged("anna", 19, target="session", target_id=session("anna alone"), kind=Kind.OUTCOME, value=1.0),
        judged("ben", 7),
    )
    report = home.land()
    assert report.rows[TURNS] == 8
    assert report.rows[FEEDBACK] == 1
    found = mentions(home.root, words("anna"))
    assert {file.partition("/")[0] for file, _ in found} == {"spool"}, "until these segments are past retention"


def test_an_open_spool_holds_the_receipt_up_until_it_is_sealed(home: Home) -> None:
    gateway = Spool.open(home.spool, segment_seconds=3600.0)
    said = judged("anna", 17, kind=Kind.EDIT, text="edit of anna")
    gateway.append_sync([turn("anna", 17), turn("ben", 17), said])
    asked = Receipts(home.receipts).request("subject", subject("anna"))
    reached = home.erase(asked.receipt_id, patience=0.0)
    assert (reached.known, reached.settled) == (True, False)
    assert "not sealed" in reached.waits
    assert {file for file, _ in mentions(home.root, words("anna"))} == {
        f"spool/{gateway.spool_id}/active-0000000000000001.db-wal"
    }
    gateway.close()
    reached = home.erase(asked.receipt_id)
    assert reached.settled
    assert mentions(home.root, words("anna")) == set()
    assert turn_id("ben", 17) in home.rows(TURNS, "turn_id")


def test_a_session_is_forgotten_and_its_people_stay(home: Home) -> None:
    asked = Receipts(home.receipts).request("session", session("everybody"))
    assert home.erase(asked.receipt_id).settled
    assert mentions(home.root, [session("everybody"), *(turn_id(name, 0) for name in PEOPLE)]) == set()
    assert home.rows(TURNS, "turn_id") == sorted(turn_id(name, number) for name in PEOPLE for number in range(1, 16))


STEPS: list[tuple[Any, str]] = [
    (forget.Spool, "append_sync"),
    (forget.Receipts, "filed"),
    (forget.Receipts, "move"),
    (forget, "land"),
    (forget.Receipts, "add_targets"),
    (forget, "belonging"),
    (forget, "rewrite"),
    (forget, "rewrite_spools"),
    (forget, "fence"),
    (forget, "_delete"),
    (forget, "delete_rows"),
    (forget, "upkeep"),
    (successors, "write_groups"),
    (successors, "write_atomically"),
    (forget, "erase_dataset"),
    (forget, "erase_pages"),
]


def killed_after(root: Path, receipt_id: str, step: int) -> None:
    """In a process of its own: erases, and is killed right after the step."""
    place, name = STEPS[step]
    real: Callable[..., Any] = getattr(place, name)

    def last(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, last)
    Home(root).erase(receipt_id)


def test_it_can_be_killed_after_each_step_and_run_again(home: Home) -> None:
    asked = Receipts(home.receipts).request("subject", subject("anna"))
    processes = multiprocessing.get_context("forkserver")  # imports once for all of them
    processes.set_forkserver_preload([__name__])
    for step, (_, name) in enumerate(STEPS):
        process = processes.Process(target=killed_after, args=(home.root, asked.receipt_id, step))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"{name} was not come to"
    assert home.erase(asked.receipt_id).settled
    assert mentions(home.root, words("anna")) == set()
    everything_but_anna(home)
    erased = read(home.lake, ERASURES).to_table(columns=["target", "digest"]).to_pylist()
    assert {row["target"] for row in erased} == {"subject", "session", "turn"}
