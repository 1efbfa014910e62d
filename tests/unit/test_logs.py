"""Logs of long-running processes: JSON lines in which nobody is quoted."""

import json
import subprocess
import sys

from ingest.contracts.process_logs import message_of

CODE = """
import asyncio, logging
from ingest.contracts.process_logs import structured
structured()
log = logging.getLogger("a.b")
log.info("served on port %d", 8700)
logging.getLogger("uvicorn.error").info("not shown")
try:
    raise ValueError("pelican")
except ValueError:
    log.exception("Exception in ASGI application\\n")
log.warning("with a trace", extra={"trace_id": "abc"})
async def fails():
    raise ValueError("pelican")
async def main():
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
asyncio.run(main())
"""


def test_lines_are_json_and_exceptions_are_named_not_quoted() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "pelican" not in done.stderr
    started, failed, traced, unretrieved = (json.loads(line) for line in done.stderr.splitlines())
    assert (started["level"], started["logger"], started["message"]) == ("info", "a.b", "served on port 8700")
    assert started["time"].endswith("+00:00")
    assert failed["message"] == "Exception in ASGI application"
    assert failed["error"].startswith("ValueError at <string>:")
    assert failed["stack"] == [failed["error"].removeprefix("ValueError at ")]
    assert traced["trace_id"] == "abc"
    assert unretrieved["message"] == "Task exception was never retrieved"


def test_people_are_shown_what_a_line_says() -> None:
    assert message_of('{"time":"…","level":"error","message":"the port is taken"}') == "the port is taken"
    for other in ("ValueError: 3", '{"detail":1}', "[]", "", "{"):
        assert message_of(other) == other
