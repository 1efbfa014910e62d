"""`everloop kafka`: a broker on this machine for development, without the rest of the stack."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipelines.errors import PipelineError

app = typer.Typer(no_args_is_help=True)

HomeOption = Annotated[Path, typer.Option("--home", help="Folder of the broker's data, log and process id.")]
DEFAULT_HOME = Path("everloop-kafka")


@app.command()
def up(
    home: HomeOption = DEFAULT_HOME,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 9092,
    seconds: Annotated[float, typer.Option(help="How long to wait until it answers.")] = 120.0,
) -> None:
    """Start a broker in the background and wait until it answers."""
    from ingest.kafka_broker import missing, ready

    said = missing()
    if said is not None:
        raise PipelineError(said)
    if ready(port):
        raise PipelineError(f"port {port} is in use: another broker? Choose another with --port")
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ingest.kafka_broker", "--home", str(home), "--port", str(port)]
    with (home / "broker.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (home / "broker.pid").write_text(str(process.pid))
    deadline = time.monotonic() + seconds
    while not ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise PipelineError(f"the broker did not start: {home / 'broker.log'} says why")
        time.sleep(0.2)
    print(f"Kafka listens on 127.0.0.1:{port}; stop it with `everloop kafka down --home {home}`")


@app.command()
def down(home: HomeOption = DEFAULT_HOME) -> None:
    """Stop the broker."""
    path = home / "broker.pid"
    if not path.exists():
        raise PipelineError(f"no broker was started in {home}")
    pid = int(path.read_text())
    if _is_ours(pid, home):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while _is_ours(pid, home) and time.monotonic() < deadline:
            time.sleep(0.1)
        if _is_ours(pid, home):
            os.kill(pid, signal.SIGKILL)
    path.unlink()
    print("Kafka is down")


def _is_ours(pid: int, home: Path) -> bool:
    """Whether this process is the broker of `home`: a number may have been given to another since."""
    with suppress(OSError):
        return str(home).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
