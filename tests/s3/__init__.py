"""A real S3 server: S3Proxy over a folder of this machine, so that a test can read what lies in a bucket as files.

It makes a conditional write with link(2), so that of two commits of the same number one is refused, as in S3 itself.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.kafka_broker import ready
from pipelines.stack.addresses import free_port

SOURCE = Path(__file__).parent
KEY, SECRET = "the-tests-access-key", "the-tests-secret-key"

_PROPERTIES = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem
jclouds.filesystem.basedir={buckets}
"""


class Store:
    """A running server. Folders of `buckets` are its buckets."""

    def __init__(self, home: Path, port: int) -> None:
        self.port, self.buckets = port, home / "buckets"
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
        }


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """A server; killed and its data removed at the end of the session."""
    home = Path(tempfile.mkdtemp(prefix="everloop-s3-"))
    found = Store(home, free_port())
    found.buckets.mkdir()
    properties = home / "s3proxy.conf"
    properties.write_text(_PROPERTIES.format(port=found.port, key=KEY, secret=SECRET, buckets=found.buckets))
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.logFile=System.out"]
    command = ["java", *options, "-cp", f"{_libs()}/*", "org.gaul.s3proxy.Main", "--properties", str(properties)]
    with (home / "log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    end = time.monotonic() + 60
    while not ready(found.port):
        assert process.poll() is None, (home / "log").read_text()[-3000:]
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.05)
    yield found
    process.kill()
    process.wait()
    shutil.rmtree(home)


def _libs() -> Path:
    """The folder of jars, fetched where it is not there yet."""
    libs = SOURCE / "libs"
    if not (libs / ".complete").exists():
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (libs / ".complete").touch()
    return libs
