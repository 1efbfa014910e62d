"""Where the processes of this machine listen: configured ports, or free ones chosen once and remembered.

`run/ports.json` is what the command line, the scheduler and the next `everloop up` go by.
"""

import random
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from ingest.contracts.files import write_atomically
from pipelines.config import Config
from pipelines.errors import PipelineError
from pipelines.home import Home

HOST = "127.0.0.1"
_FIRST_PORT = 20000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Ports by process, engines as `engine-<index in the configuration>`; `kafka` is HOST:PORT, None without Kafka."""

    ports: dict[str, int]
    kafka: str | None = None

    @property
    def gateway(self) -> str:
        """URLs have no trailing slash."""
        return f"http://{HOST}:{self.ports['gateway']}"

    @property
    def metrics(self) -> str:
        return f"http://{HOST}:{self.ports['gateway-admin']}/metrics"

    @property
    def control(self) -> str:
        return f"http://{HOST}:{self.ports['control']}"

    @property
    def mlflow(self) -> str:
        return f"http://{HOST}:{self.ports['mlflow']}"


def wanted(config: Config, own_broker: bool) -> dict[str, tuple[int, str]]:
    """Process → (configured port or 0, where it is configured)."""
    ports = {
        "gateway": (config.gateway.port, "[gateway] port"),
        "gateway-admin": (config.gateway.admin_port, "[gateway] admin_port"),
        "control": (config.control.port, "[control] port"),
        "mlflow": (config.mlflow.port, "[mlflow] port"),
    }
    for n, engine in enumerate(config.engines):
        ports[f"engine-{n}"] = (engine.port, f"port of engines[{n}]")
    if own_broker:
        ports["kafka"] = (0, "[log]")
        ports["kafka-controller"] = (0, "[log]")
    return ports


def choose(config: Config, home: Home, kafka: bool, free: Callable[[int], bool] | None = None) -> Addresses:
    """Ports for every process, remembered in `run/ports.json`; raises where a configured one is in use."""
    free = free or is_free
    own_broker = kafka and config.log.own_broker
    remembered = _read(home.run / "ports.json")
    before = remembered.ports if remembered else {}
    chosen: dict[str, int] = {}
    for name, (port, where) in wanted(config, own_broker).items():
        if port and not free(port):
            raise PipelineError(f"port {port} is in use: stop what listens there, or set another in {where}")
        last = before.get(name, 0)
        keep = last if last and last not in chosen.values() and free(last) else 0
        chosen[name] = port or keep or free_port(chosen.values())
    broker = f"{HOST}:{chosen['kafka']}" if own_broker else config.log.bootstrap
    found = Addresses(ports=chosen, kafka=broker if kafka else None)
    write_atomically(home.run / "ports.json", msgspec.json.format(msgspec.json.encode(found), indent=1))
    return found


def load(home: Home) -> Addresses:
    """The addresses of the stack in this home folder; raises where it never ran."""
    found = _read(home.run / "ports.json")
    if found is None:
        raise PipelineError(f"nothing ever ran in {home.root}: start it with `everloop up`")
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port that nothing listens on now, other than those in `taken`.

    It lies below those that the kernel gives to outgoing connections: none of these can take it while its server
    is away.
    """
    while True:
        port = random.randrange(_FIRST_PORT, _first_ephemeral())
        if port not in taken and is_free(port):
            return port


def _first_ephemeral() -> int:
    with suppress(OSError):
        return max(int(_EPHEMERAL.read_text().split()[0]), _FIRST_PORT + 1000)
    return 32768


def _read(path: Path) -> Addresses | None:
    return msgspec.json.decode(path.read_bytes(), type=Addresses) if path.exists() else None
