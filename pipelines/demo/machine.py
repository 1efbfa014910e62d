"""Is this machine one that the demo runs on? Asked first, answered with a sentence for each thing that is missing."""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

GB = 10**9
NEEDED_MEMORY = 16 * GB
"""Measured: two engines 7, the trainer 5, Kafka, MLflow and the rest 4."""
NEEDED_DISK = 8 * GB
"""The model, six checkpoints with their training state, and the logs."""
NEEDED_PACKAGES = ("vllm", "torch", "deepspeed", "mlflow", "great_expectations", "openai", "gguf", "supervisor")


@dataclass(frozen=True)
class Machine:
    """What counts: sizes in bytes, `absent` the names of packages that do not import."""

    system: str
    architecture: str
    python: tuple[int, int]
    cores: int
    free_memory: int
    free_disk: int
    absent: tuple[str, ...] = ()


def this_machine(folder: Path) -> Machine:
    """The machine we are on; disk as free where `folder` is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        python=sys.version_info[:2],
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_memory=_free_memory(),
        free_disk=shutil.disk_usage(folder).free,
        absent=tuple(name for name in NEEDED_PACKAGES if find_spec(name) is None),
    )


def lacks(machine: Machine) -> list[str]:
    """A sentence for each thing that is missing; empty where the demo can run."""
    said = []
    if (machine.system, machine.architecture) != ("Linux", "x86_64"):
        said.append(
            f"The demo runs on Linux x86-64, this is {machine.system} {machine.architecture}: use such a machine."
        )
    if machine.python != (3, 11):
        said.append(
            f"The locked packages are for Python 3.11, this is {machine.python[0]}.{machine.python[1]}: "
            "run `make setup PYTHON=/path/to/python3.11`."
        )
    if machine.absent:
        said.append(f"Not installed: {', '.join(machine.absent)}. Run `make setup`.")
    if machine.cores < 2:
        said.append("The demo needs 2 processor cores, this process may use 1.")
    if machine.free_memory < NEEDED_MEMORY:
        said.append(
            f"The demo needs {NEEDED_MEMORY / GB:.0f} GB of free memory, {machine.free_memory / GB:.1f} GB are free: "
            "end other programs, or use a larger machine."
        )
    if machine.free_disk < NEEDED_DISK:
        said.append(
            f"The demo needs {NEEDED_DISK / GB:.0f} GB of free disk here, {machine.free_disk / GB:.1f} GB are free: "
            "make room, or run it from another folder."
        )
    return said


def _free_memory() -> int:
    """Bytes that could be had without swapping, within the control group's limit where there is one."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return 0
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        free = min(free, int(most) - int(used.read_text()))
    return free
