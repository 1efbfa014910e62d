"""A real MLflow server for tests: SQLite, one worker, artifacts served; one per test session, whoever imports it."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from pipelines.stack.addresses import free_port


@functools.cache
def start() -> str:
    """The URL of the session's server, started at the first call and ended with the process."""
    folder = tempfile.TemporaryDirectory(prefix="everloop-mlflow-")
    root, port = Path(folder.name), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}"]
    command += ["--serve-artifacts", "--artifacts-destination", str(root / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (root / "server.log").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=output, start_new_session=True
        )

    def stop() -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        folder.cleanup()

    atexit.register(stop)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"mlflow server ended with {process.returncode}: {(root / 'server.log').read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return url
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"mlflow server did not start: {(root / 'server.log').read_text()}")


@pytest.fixture(scope="session")
def mlflow_server() -> str:
    """The URL of the session's MLflow server."""
    return start()
