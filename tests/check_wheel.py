"""The wheel as a gateway host gets it: built, installed with `[gateway]` alone in an empty environment, started.

Run by `make wheel`. It fails where the wheel ships more than the six packages, where the gateway or the
command line does not start there, or where a heavy package came along.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"serving", "ingest", "trainer", "evaluation", "promotion", "pipelines"}
HEAVY = {
    "torch",
    "vllm",
    "pandas",
    "mlflow",
    "deepspeed",
    "transformers",
    "great_expectations",
    "sqlalchemy",
    "duckdb",
    "opentelemetry_sdk",
    "grpcio",
}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory() as folder:
        run(uv, "build", "-q", "--wheel", "--out-dir", folder, ".")
        (wheel,) = Path(folder).glob("*.whl")
        top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        extra = {name for name in top - PACKAGES if not name.endswith(".dist-info")}
        if extra or not top >= PACKAGES:
            sys.exit(f"the wheel ships {sorted(extra)} besides the packages, or lacks {sorted(PACKAGES - top)}")
        run(uv, "venv", "-q", "--python", sys.executable, f"{folder}/env")
        python = f"{folder}/env/bin/python"
        run(uv, "pip", "install", "-q", "--python", python, "-c", "requirements.lock", f"{wheel}[gateway]")
        frozen = run(uv, "pip", "freeze", "--python", python).split()
        installed = {line.split("==")[0].replace("-", "_") for line in frozen}
        if came := installed & HEAVY:
            sys.exit(f"everloop[gateway] brought {sorted(came)} along")
        run(f"{folder}/env/bin/everloop", "--help")
        run(python, "-m", "serving.gateway", "--help")
        # An unreachable control process and no saved snapshot: the gateway comes up to where it says so.
        started = subprocess.run(
            [
                python,
                "-m",
                "serving.gateway",
                "--port",
                "0",
                "--control",
                "http://127.0.0.1:9",
                "--spool",
                f"{folder}/s",
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=60,
            env={"EVERLOOP_CONTROL_TOKEN": "t", "EVERLOOP_HASH_SECRET": "00" * 32, "PATH": "/usr/bin:/bin"},
        )
        if started.returncode != 2 or "control" not in started.stderr:
            sys.exit(f"the gateway without control ended with {started.returncode}: {started.stderr[-2000:]}")
    print(f"wheel: {len(installed)} packages with [gateway], none of them heavy")


if __name__ == "__main__":
    main()
