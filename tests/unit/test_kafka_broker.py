"""Preparing a broker: what is missing is said in a sentence, and properties are written as given."""

from pathlib import Path

import pytest

from ingest.kafka_broker import BrokerError, command, missing, prepare


def make_path(folder: Path, *programs: str) -> str:
    for program in programs:
        (folder / program).write_text("#!/bin/sh\necho offline >&2; exit 1\n")
        (folder / program).chmod(0o755)
    return str(folder)


def test_no_java_and_no_maven_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, programs = tmp_path / "kafka", tmp_path / "bin"
    source.mkdir()
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert "Java" in str(missing(source))
    monkeypatch.setenv("PATH", make_path(programs, "java"))
    assert "pom.xml" in str(missing(source))
    (source / "pom.xml").touch()
    assert "Maven" in str(missing(source))
    with pytest.raises(BrokerError, match="Maven"):
        prepare(source)
    (source / "libs").mkdir()
    (source / "libs" / ".complete").touch()
    assert missing(source) is None
    assert prepare(source) == source / "libs"


def test_a_maven_that_fails_is_quoted_and_leaves_nothing_that_counts_as_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, programs = tmp_path / "kafka", tmp_path / "bin"
    source.mkdir()
    programs.mkdir()
    (source / "pom.xml").touch()
    monkeypatch.setenv("PATH", make_path(programs, "java", "mvn") + ":/bin:/usr/bin")
    with pytest.raises(BrokerError, match="offline"):
        prepare(source)
    assert not (source / "libs" / ".complete").exists()


def test_the_command_line_names_jars_and_properties(tmp_path: Path):
    line = command(tmp_path / "server.properties", tmp_path / "libs")
    assert line[0] == "java"
    assert f"{tmp_path}/libs/*" in line
    assert line[-1] == f"{tmp_path}/server.properties"
