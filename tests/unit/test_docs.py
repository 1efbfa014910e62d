"""The documentation says what the code does: generated pages are current, and what the README runs exists."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.generate import pages
from pipelines.cli import app

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_page_is_current(path):
    assert path.read_text() == pages()[path], "run `make docs`"


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_links_and_paths_exist(text):
    body = text.read_text()
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", body):
        assert (text.parent / link).exists(), f"{text.name} links to {link}"
    for path in re.findall(
        r"`((?:serving|ingest|trainer|evaluation|promotion|pipelines|docs|demo|deploy|tests)/[\w./-]+)`", body
    ):
        assert (ROOT / path).exists(), f"{text.name} names {path}"


def commands(text: str) -> list[list[str]]:
    lines = [line for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.S) for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("everloop ", "make "))]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_commands_exist(text):
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(text.read_text()):
        if words[0] == "make":
            assert all(re.search(rf"^{w}:", makefile, re.M) for w in words[1:] if "=" not in w), words
            continue
        command = [w for w in words[1:] if re.fullmatch(r"[a-z][a-z-]*", w)]
        options = {w.split("=")[0] for w in words if w.startswith("--")}
        help_text = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*command[:2], "--help"])
        if help_text.exit_code:
            help_text = CliRunner(env={"COLUMNS": "300"}).invoke(app, [command[0], "--help"])
        assert help_text.exit_code == 0, words
        assert all(option in help_text.output for option in options), words
