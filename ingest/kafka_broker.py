"""A Kafka broker of one node, for development and tests: the one that users run, fetched with Maven.

    python -m ingest.kafka_broker --home FOLDER --port 9092

`prepare` fetches the jars that `deploy/kafka/pom.xml` names, `configure` writes `server.properties` and formats the
storage once, `command` is what a supervisor or a test runs, `ready` asks whether it answers. KRaft, broker and
controller in one process, on 127.0.0.1 only. One replica: it survives kill -9, not the loss of its disk.
"""

import argparse
import base64
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "deploy" / "kafka"
"""The folder of `pom.xml`; the jars go into its `libs/`."""

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class BrokerError(Exception):
    """The broker cannot be prepared: says what failed and what to do."""


def missing(source: Path = SOURCE) -> str | None:
    """What keeps a broker from running here, as a sentence; None where nothing does."""
    if shutil.which("java") is None:
        return "Kafka's broker needs Java 17 or newer, and there is no `java` on the path."
    if _fetched(source):
        return None
    if not (source / "pom.xml").is_file():
        return f"{source} has no pom.xml: run a broker from a checkout of the repository, or name an existing one."
    if shutil.which("mvn") is None:
        return "Kafka's jars are fetched with Maven, and there is no `mvn` on the path."
    return None


def prepare(source: Path = SOURCE) -> Path:
    """The folder of jars, fetched where it is not there yet. Raises `BrokerError`."""
    if (sentence := missing(source)) is not None:
        raise BrokerError(sentence)
    libs = source / "libs"
    if not _fetched(source):
        run = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies"], cwd=source, capture_output=True, text=True
        )
        if run.returncode:
            raise BrokerError(f"Maven could not fetch Kafka's jars: {(run.stdout + run.stderr).strip()[-2000:]}")
        (libs / ".complete").touch()
    return libs


def configure(home: Path, port: int, controller_port: int, libs: Path) -> Path:
    """Writes `home/server.properties` and formats `home/data` once; returns the former. Raises `BrokerError`."""
    home = home.absolute()
    data = home / "data"
    home.mkdir(parents=True, exist_ok=True)
    properties = home / "server.properties"
    properties.write_text(_PROPERTIES.format(port=port, controller=controller_port, data=data))
    if not (data / "meta.properties").exists():
        # The first byte 0 makes the first letter A: an id that begins with `-` is taken for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        run = subprocess.run(
            [*_java(libs), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise BrokerError(f"Kafka's storage could not be formatted: {(run.stdout + run.stderr).strip()[-2000:]}")
    return properties


def command(properties: Path, libs: Path) -> list[str]:
    """The broker's command line."""
    return [*_java(libs), "kafka.Kafka", str(properties)]


def ready(port: int) -> bool:
    """Whether the broker takes connections; it listens only once it can answer."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _java(libs: Path) -> list[str]:
    logging = libs.absolute().parent / "log4j2.properties"
    return ["java", "-Xmx512m", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libs.absolute()}/*"]


def _fetched(source: Path) -> bool:
    return (source / "libs" / ".complete").exists()


def main() -> None:
    """Prepares everything and becomes the broker."""
    parser = argparse.ArgumentParser(prog="ingest.kafka_broker", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--home", type=Path, required=True, help="folder for its properties and data")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--controller-port", type=int, help="default: the port after --port")
    options = parser.parse_args()
    try:
        libs = prepare()
        properties = configure(options.home, options.port, options.controller_port or options.port + 1, libs)
    except BrokerError as error:
        parser.exit(1, f"{error}\n")
    line = command(properties, libs)
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
