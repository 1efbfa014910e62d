"""Stage workers: resident, replaced when killed, gone with their parent."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import workers as work
from pipelines.errors import StageFailed
from pipelines.records import Stage
from pipelines.runs import Runs
from pipelines.workers import Report, Workers

pytestmark = pytest.mark.integration
HERE = "tests.integration.scripted"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path / "locks", {"trainer": {"OMP_NUM_THREADS": "3"}})
    yield found
    found.close()


def until(done: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_a_worker_stays_and_has_its_familys_environment(workers: Workers) -> None:
    first = workers.call("trainer", f"{HERE}:where")
    assert workers.call("trainer", f"{HERE}:where") == first
    assert first["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] != "3"
    other = workers.call("ingest", f"{HERE}:where")
    assert other["pid"] not in (first["pid"], os.getpid())


def test_values_come_back_as_plain_ones_and_errors_by_name(workers: Workers, tmp_path: Path) -> None:
    assert workers.call("ingest", f"{HERE}:echo", value=(1, Stage.LAND)) == {"path": "a/b", "value": [1, "land"]}
    with pytest.raises(StageFailed, match="kl stopped it") as caught:
        workers.call("ingest", f"{HERE}:stop")
    assert (caught.value.kind, caught.value.details) == ("Stopped", {"monitor": "kl", "value": 2.5})
    # The worker is still the same one: an error is no death.
    assert workers.call("ingest", f"{HERE}:echo", value=1)["value"] == 1


def test_what_a_call_says_of_its_error_is_logged_before_the_next_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error may name turns, and the next call may be the erasure of them."""
    lock = tmp_path / "ingest.lock"
    held: list[bool] = []

    def warning(*_: object, **__: object) -> None:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)

    monkeypatch.setattr(work.log, "warning", warning)
    with pytest.raises(StageFailed):
        work._invoke(lock, f"{HERE}:stop", None, {})
    assert held == [True]


def test_a_killed_worker_is_replaced_and_its_call_made_again(workers: Workers, tmp_path: Path) -> None:
    assert workers.call("ingest", f"{HERE}:die_once", note=tmp_path / "note") == "done"
    with pytest.raises(StageFailed, match="died 2 times") as caught:
        workers.call("ingest", f"{HERE}:die")
    assert caught.value.kind == "WorkerDied"
    assert workers.call("ingest", f"{HERE}:echo", value=1)["value"] == 1


def test_progress_reaches_the_run_history(workers: Workers, tmp_path: Path) -> None:
    runs = Runs(tmp_path / "pipelines.db")
    run = runs.create("p")
    runs.begin(run.run_id, Stage.TRAIN)
    workers.call("trainer", f"{HERE}:tell", report=Report(runs.path, run.run_id, Stage.TRAIN))
    record = runs.get(run.run_id).stage(Stage.TRAIN)
    assert record is not None
    assert record.progress == {"step": 1, "loss": 0.5}


def test_closing_abandons_the_call_at_work(workers: Workers, tmp_path: Path) -> None:
    caught: list[StageFailed] = []

    def call() -> None:
        with pytest.raises(StageFailed) as raised:
            workers.call("trainer", f"{HERE}:linger", note=tmp_path / "pid")
        caught.append(raised.value)

    thread = threading.Thread(target=call)
    thread.start()
    until((tmp_path / "pid").exists)
    workers.close()
    thread.join(30)
    assert "abandoned" in str(caught[0])
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from pipelines.workers import Workers\n"
        "if __name__ == '__main__':\n"
        f"    Workers(Path({str(tmp_path)!r})).call('trainer', '{HERE}:linger', note=Path({str(tmp_path / 'pid')!r}))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(script)], env=environment) as parent:
        until((tmp_path / "pid").exists)
        worker = Path(f"/proc/{(tmp_path / 'pid').read_text()}")
        assert worker.exists()
        parent.kill()
    until(lambda: not worker.exists() or "\nState:\tZ" in (worker / "status").read_text())
