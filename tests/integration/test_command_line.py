"""`everloop` as a person calls it."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from ingest.contracts.ids import keyed_hash
from ingest.spool import SpoolFolder
from pipelines.cli import stack as commands
from pipelines.config import load
from pipelines.home import Home
from pipelines.records import Outcome, RunState, Stage, StageState
from pipelines.runs import Runs
from pipelines.stack import secrets, status
from pipelines.stack.addresses import Addresses, free_port
from tests.integration.serving_stack import CONTROL_TOKEN, Stack
from tests.unit.test_config import GOOD

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def everloop(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = [sys.executable, "-m", "pipelines.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "everloop.toml").write_text(GOOD)
    return tmp_path


def test_help_names_every_command(folder: Path) -> None:
    done = everloop(folder, "--help")
    assert done.returncode == 0
    assert "...\n" not in done.stdout.partition("Options:")[2], "a command's first sentence is too long for the list"
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.strip()}
    assert {
        *("up", "down", "status", "doctor", "run", "runs", "train", "evaluate", "versions", "promote", "rollback"),
        *("keys", "subjects", "dataset", "log", "kafka", "config", "gateway", "control", "engine", "simulate", "demo"),
    } <= listed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("status", "--nope"), 2, "No such option"),
        (("status", "-c", "missing.toml"), 1, "missing.toml does not exist: name the configuration with --config"),
        (("run",), 1, "nothing ever ran in"),
        (("keys", "list"), 1, "nothing ever ran in"),
        (("subjects", "opt-out", "anna"), 1, "nothing ever ran in"),
        (("forget", "--subject", "anna", "--yes"), 1, "nothing ever ran in"),
        (("forget", "--yes"), 2, "name one of --subject and --session"),
        (("forget", "--subject", "", "--yes"), 2, "name one of --subject and --session"),
        (("forget", "--subject", "\udcff", "--yes"), 2, "a name is text in UTF-8"),
        (("forget", "status", "er-1"), 1, 'there is no receipt "er-1"'),
        (("trace", "c9"), 1, 'there is no checkpoint "c9", and no turn in the lake: `everloop log seek --turn c9`'),
        (("keys", "create", "app", "--concurrency", "0"), 2, "--concurrency"),
        (("runs", "r9"), 1, 'there is no run "r9"'),
        (("run", "-p", "other"), 1, 'there is no policy "other": the configuration has helper'),
        (("kafka", "down"), 1, "no broker was started in"),
        (("keys", "create", "app", "--role", "nope"), 2, '"nope" is none of inference, feedback, admin, evaluation'),
        (("log", "tail", "-n", "-1"), 2, "--count"),
        (("demo", "--cycles", "1"), 2, "unrecognized arguments"),
    ],
)
def test_errors_are_one_sentence_on_standard_error(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = everloop(folder, *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_up_says_everything_that_is_missing_before_it_starts_anything(folder: Path) -> None:
    done = everloop(folder, "up")
    assert done.returncode == 1
    assert "set policies.helper.model" in done.stderr
    assert "set policies.helper.evaluation.suite" in done.stderr
    assert not (folder / "here" / "run").exists()


def test_status_as_json_of_a_stack_that_is_down(folder: Path) -> None:
    runs = Runs(Home.at(folder / "here").database)
    run = runs.create("helper")
    runs.begin(run.run_id, Stage.LAND)
    runs.end(run.run_id, Stage.LAND, StageState.FINISHED, {"ready": 3})
    runs.move(run.run_id, RunState.DONE, "the interval holds 0", Outcome.HELD)
    found = json.loads(everloop(folder, "status", "--json").stdout)
    assert found["running"] is False
    assert found["problems"] == []
    assert {"engines", "versions", "spool_bytes", "policies", "processes"} <= set(found)
    assert found["policies"]["helper"]["last_run"]["outcome"] == "held"
    assert found["policies"]["helper"]["next_run"] is None
    (listed,) = json.loads(everloop(folder, "runs", "--json").stdout)
    assert (listed["run_id"], listed["reason"]) == (run.run_id, "the interval holds 0")
    assert "land" in everloop(folder, "runs", run.run_id).stdout


def test_what_asks_mlflow_says_at_once_that_it_is_away(folder: Path) -> None:
    home = Home.at(folder / "here").create()
    where = Addresses(ports={"mlflow": free_port()})
    (home.run / "ports.json").write_bytes(msgspec.json.encode(where))
    for words in (("versions",), ("rollback",), ("promote", "c1", "--override", "because")):
        done = everloop(folder, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"MLflow does not answer at {where.mlflow} ([Errno" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_training_on_what_is_not_there_says_what_there_is(folder: Path) -> None:
    made = Home.at(folder / "here").datasets / "helper" / "d1"
    made.mkdir(parents=True)
    (made / "manifest.json").touch()
    assert "d7 is not complete or does not exist; there are: d1" in everloop(folder, "train", "d7").stderr


def test_status_shows_where_a_running_stack_listens(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    down = status.status(load(folder / "everloop.toml", {}))
    where = {"gateway": "http://127.0.0.1:8700", "metrics": "http://127.0.0.1:8701/metrics", "kafka": None}
    monkeypatch.setattr(status, "status", lambda config: down | {"running": True, "addresses": where})
    commands.status(folder / "everloop.toml")
    assert "gateway http://127.0.0.1:8700 · metrics http://127.0.0.1:8701/metrics\n" in capsys.readouterr().out


def test_status_tells_of_damaged_segments(folder: Path) -> None:
    spool = Home.at(folder / "here").spool / ("a" * 32)
    spool.mkdir(parents=True)
    (spool / f"{1:016d}-{2:016d}.db").write_bytes(b"no segment")
    (segment,) = SpoolFolder(spool).sealed()
    assert len(list(SpoolFolder(spool).read(segment))) == 2
    (problem,) = json.loads(everloop(folder, "status", "--json").stdout)["problems"]
    assert "2 rows are lost" in problem


def test_config_check_and_reference(folder: Path) -> None:
    assert everloop(folder, "config", "check").stdout == "everloop.toml is right. Policies: helper. Engines: 2.\n"
    assert "## `[[engines]]`" in everloop(folder, "config", "reference").stdout
    (folder / "everloop.toml").write_text(GOOD + "mim_turns = 3\n")
    assert 'did you mean "min_turns"?' in everloop(folder, "config", "check").stderr


def test_a_row_of_a_table_is_a_line_where_no_terminal_reads_it(folder: Path) -> None:
    rows = everloop(folder, "doctor").stdout.splitlines()
    (said,) = (row for row in rows if "functions of helper" in row)
    assert said.rstrip().endswith("or is installed")


def test_doctor_tells_and_its_code_says_whether_up_would_start(folder: Path) -> None:
    done = everloop(folder, "doctor", "--json")
    assert done.returncode == 1
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert not found["model of helper"]["ok"]
    assert found["leftovers"]["ok"]


@pytest.mark.parametrize(
    ("part", "said"), [("gateway", "--spool"), ("engine", "usage: everloop engine "), ("demo", "DEMO=once")]
)
def test_a_part_of_everloop_is_a_command_with_its_own_options(folder: Path, part: str, said: str) -> None:
    done = everloop(folder, part, "--help")
    assert done.returncode == 0
    assert said in done.stdout


def test_the_version(folder: Path) -> None:
    assert everloop(folder, "--version").stdout.strip() == version("everloop")


def test_keys_and_opt_outs_of_a_running_control(folder: Path) -> None:
    stack = Stack(folder)
    home = Home.at(folder / "here").create()
    kept = msgspec.structs.replace(secrets.load_or_create(home.run / "secrets.json"), control_token=CONTROL_TOKEN)
    secrets.save(home.run / "secrets.json", kept)
    try:
        stack.start_control()
        where = Addresses(ports={"control": stack.control_port})
        (home.run / "ports.json").write_bytes(msgspec.json.encode(where))
        limits = ("--requests-per-minute", "60", "--concurrency", "4")
        key = everloop(folder, "keys", "create", "app", "--role", "inference", "--no-train", *limits)
        assert key.returncode == 0, key.stderr
        (listed,) = json.loads(everloop(folder, "keys", "list", "--json").stdout)
        assert (listed["requests_per_minute"], listed["concurrency"], listed["train"]) == (60, 4, False)
        assert " 60 " in everloop(folder, "keys", "list").stdout
        assert "is revoked" in everloop(folder, "keys", "revoke", listed["key_id"]).stdout
        subject = keyed_hash(bytes.fromhex(kept.hash_secret), "subject", "anna")
        assert subject in everloop(folder, "subjects", "opt-out", "anna").stdout
        assert [row["subject"] for row in json.loads(everloop(folder, "subjects", "list", "--json").stdout)] == [
            subject
        ]
        everything = b"".join(path.read_bytes() for path in (folder / "control").iterdir())
        assert b"anna" not in everything
        assert everloop(folder, "subjects", "opt-in", "anna").returncode == 0
        again = everloop(folder, "subjects", "opt-in", "anna")
        assert (again.returncode, "has not opted out" in again.stderr) == (1, True)
    finally:
        stack.stop_all()
