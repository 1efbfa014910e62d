"""Packages import along the arrows only, and what answers at once imports nothing heavy (invariant 8)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "ingest": set(),
    "serving": {"ingest"},
    "trainer": {"ingest"},
    "evaluation": {"ingest"},
    "promotion": {"ingest"},
    "pipelines": {"ingest", "serving", "trainer", "evaluation", "promotion"},
}
HEAVY = {
    "alembic", "apscheduler", "deepspeed", "deltalake", "duckdb", "great_expectations", "matplotlib", "mlflow",
    "pandas", "peft", "pyarrow", "scipy", "sqlalchemy", "torch", "transformers", "vllm",
}  # fmt: skip
CONTRACTS_MAY_IMPORT = {"msgspec", "ingest"}


def _modules(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts]


def _imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import: say where it comes from"
            yield node.module or ""


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_follow_the_arrows(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(package)
        for name in _imports(path)
        if name.split(".")[0] in MAY_IMPORT.keys() - MAY_IMPORT[package] - {package}
        or name.split(".")[0] in ("tests", "benchmarks", "docs")
    ]
    assert wrong == []


def test_contracts_import_the_standard_library_and_msgspec() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules("ingest/contracts")
        for name in _imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names | CONTRACTS_MAY_IMPORT
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "serving.gateway.__main__",
        "serving.gateway.app",
        "ingest.contracts.events",
        "ingest.spool",
        "ingest.forwarder",
        "promotion.reconcile",
        "pipelines.cli",
        "pipelines.config",
        "pipelines.local",
        "pipelines.stack.up",
        "pipelines.stack.status",
    ],
)
def test_what_answers_at_once_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & HEAVY == set()


def test_the_command_line_imports_its_parts_when_they_are_called() -> None:
    code = "import sys, pipelines.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pydantic", "aiohttp", "pipelines.config", "rich.table"} & set(done.stdout.split())
