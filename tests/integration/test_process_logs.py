"""Long-running processes log JSON lines, commands for people log text, and stage workers log as their parent does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:9"
WORK = """
import sys
from contextlib import suppress
from pathlib import Path
from ingest.contracts.process_logs import structured
from pipelines.errors import StageFailed
from pipelines.workers import Workers
if __name__ == "__main__":
    if sys.argv[2] == "lines":
        structured()
    workers = Workers(Path(sys.argv[1]))
    with suppress(StageFailed):
        workers.call("ingest", "tests.integration.scripted:stop")
    workers.close()
"""


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "EVERLOOP_CONTROL_TOKEN": "the token"}


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("ingest.forwarder", ["--spool", "spool", "--bootstrap", NOWHERE], "no broker"),
        (
            "promotion.reconcile",
            ["--mlflow", f"http://{NOWHERE}", "--control", f"http://{NOWHERE}", "--checkpoints", ".", "--policy", "p"],
            "does not answer",
        ),
    ],
)
def test_a_process_logs_json_lines_under_its_own_name(
    module: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], env=environment(), stdout=output, stderr=output, cwd=tmp_path
        )
    try:
        until(lambda: said in log.read_text() or process.poll() is not None)
        process.terminate()
        process.wait(120)
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(said in line["message"] and line["logger"] == module for line in lines)


@pytest.mark.parametrize("form", ["lines", "text"])
def test_a_stage_worker_logs_as_its_parent_does(form: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(WORK)
    command = [sys.executable, str(script), str(tmp_path / "locks"), form]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    if form == "text":
        assert "WARNING pipelines.workers tests.integration.scripted:stop raised Stopped" in done.stderr
        assert "Stopped: kl stopped it" in done.stderr
        return
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert line["message"] == "tests.integration.scripted:stop raised Stopped"
    assert line["error"].startswith("Stopped at ")
    assert any("scripted.py:" in place for place in line["stack"])
