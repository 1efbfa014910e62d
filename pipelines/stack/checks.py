"""What `everloop up` and `everloop doctor` look at first: each thing that is wrong is one sentence.

Sentences say what to do. A check has no side effect; what it looks at is passed in.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ingest.config import GateSettings
from ingest.contracts.errors import ContractError
from ingest.contracts.functions import load_function
from pipelines.config import Config
from pipelines.home import Home
from pipelines.stack.addresses import is_free, wanted

MAX_SOCKET_PATH = 100
"""A Unix socket's path may have 107 bytes; supervisord adds its process id for a moment."""


MEMORY = "memory"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. `advice` says what to do where it is not `ok`; `fatal` keeps `up` from starting."""

    name: str
    ok: bool
    seen: str
    advice: str = ""
    fatal: bool = True


def all_of(config: Config, home: Path, *, begun: bool) -> list[Check]:
    """Every check. `begun`: this stack runs, or its processes outlived it; what they hold is not asked about."""
    found = [*machine(config, home), *models(config), *gates(config, home), *kept(Home.of(config)), kafka(config)]
    return [c for c in found if c.name != MEMORY] if begun else [*found, *ports(config)]


def machine(config: Config, home: Path, memory: int | None = None) -> Iterator[Check]:
    """Disk, memory, paths and packages. `memory` is what is available, in bytes (default: from the kernel)."""
    wall = config.everloop
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    writable = os.access(existing, os.W_OK)
    yield Check(
        "home", writable, str(home), f"{existing} cannot be written to: set [everloop] home to a folder that can"
    )
    free = shutil.disk_usage(existing).free / 1e9
    enough = free >= wall.min_free_disk_gb
    yield Check(
        "disk",
        enough,
        f"{free:.1f} GB free",
        f"the disk under {existing} has {free:.1f} GB free, [everloop] min_free_disk_gb is {wall.min_free_disk_gb:g}: "
        "make room, or move the home folder",
    )
    available = (_available() if memory is None else memory) / 1e9
    yield Check(
        MEMORY,
        available >= wall.min_free_memory_gb,
        f"{available:.1f} GB available",
        f"{available:.1f} GB of memory are available, [everloop] min_free_memory_gb is {wall.min_free_memory_gb:g}: "
        "end what uses it, or lower the bound",
    )
    socket = home / "run" / "supervisor.sock"
    yield Check(
        "socket",
        len(os.fsencode(socket)) <= MAX_SOCKET_PATH,
        f"{len(os.fsencode(socket))} bytes",
        f"the path {socket} is longer than {MAX_SOCKET_PATH} bytes, too long for a socket: choose a shorter home",
    )
    missing = [name for name in ("supervisor", "mlflow", "vllm", "deepspeed") if importlib.util.find_spec(name) is None]
    yield Check(
        "packages",
        not missing,
        "installed" if not missing else f"{', '.join(missing)} missing",
        "install everloop[control,engine,trainer] in this environment",
    )


def models(config: Config) -> Iterator[Check]:
    """The folders that policies start from, the questions they are judged by, and the functions they name."""
    for name, policy in config.policies.items():
        folder = policy.model
        yield Check(
            f"model of {name}",
            (folder / "config.json").is_file(),
            str(folder),
            f"policy {name} starts from {folder}, which is no model folder (it has no config.json): "
            f"set policies.{name}.model",
        )
        yield Check(
            f"suite of {name}",
            policy.evaluation.suite.is_file(),
            str(policy.evaluation.suite),
            f"policy {name} is judged by {policy.evaluation.suite}, which does not exist: "
            f"set policies.{name}.evaluation.suite",
        )
        named = {
            "evaluation.target": policy.evaluation.target,
            "redaction.function": policy.redaction.function,
            "rewards.implicit.classifier": policy.rewards.implicit.classifier,
        }
        problems = [
            problem for key, path in named.items() if path and (problem := _missing(f"policies.{name}.{key}", path))
        ]
        yield Check(f"functions of {name}", not problems, ", ".join(filter(None, named.values())), "; ".join(problems))
    yield Check("policies", bool(config.policies), str(len(config.policies)), "add a table [policies.NAME]")
    yield Check(
        "engines", bool(config.engines), str(len(config.engines)), "add [[engines]], one serve and one evaluation"
    )


def gates(config: Config, home: Path) -> Iterator[Check]:
    """The files with suites of the user's own, where there are any; reading one takes seconds."""
    for name, policy in config.policies.items():
        path = Home.at(home).suites(policy.gate.suites)
        if path.exists() or policy.gate.suites is not None:
            said = _suites(name, policy.gate, path)
            yield Check(f"gate of {name}", not said, str(path), said)


def kept(home: Home) -> Iterator[Check]:
    """The lake and the receipts, where there are any already: whether this version of everloop can use them."""
    from deltalake.exceptions import DeltaError

    from ingest.lake import SCHEMAS, LakeError, exists, open_table
    from ingest.receipts import ReceiptError, Receipts

    said = ""
    try:
        for name in SCHEMAS:
            if exists(home.lake, name):
                open_table(home.lake, name)
    except LakeError as error:
        said = str(error)
    except DeltaError as error:
        said = f"the table {name} of the lake {home.lake} cannot be opened: {error}"
    yield Check("lake", not said, str(home.lake), said)
    if home.receipts.exists():
        said = ""
        try:
            Receipts(home.receipts)
        except ReceiptError as error:
            said = str(error)
        yield Check("receipts", not said, str(home.receipts), said)


def ports(config: Config) -> Iterator[Check]:
    """Configured ports that something else listens on."""
    for name, (port, where) in wanted(config, own_broker=False).items():
        if port:
            advice = f"port {port} ({name}) is in use: stop what listens there, or set another in {where}"
            yield Check(f"port of {name}", is_free(port), str(port), advice)


def kafka(config: Config) -> Check:
    """Whether a Kafka broker can run here. Fatal only where the configuration asks for one."""
    from ingest.kafka_broker import missing

    said = missing()
    fatal = config.log.kind == "kafka" and config.log.own_broker
    advice = f'{said} Or set [log] kind = "embedded".'
    return Check("kafka", said is None, said or "a broker can run here", advice, fatal=fatal)


def _missing(key: str, path: str) -> str:
    try:
        load_function(path)
    except ContractError as error:
        return f"{key} names {path}, which {error}: its module stands beside the configuration, or is installed"
    return ""


def _suites(policy: str, settings: GateSettings, path: Path) -> str:
    from ingest.gate import whole_suites  # with Great Expectations
    from ingest.suites import SuiteError, read_suites

    try:
        whole_suites(policy, settings, read_suites(path, required=True))
    except SuiteError as error:
        return f"{error}: see docs/gate.md"
    return ""


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
