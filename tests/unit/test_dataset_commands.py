"""`everloop dataset`, as a person calls it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from ingest.config import AttributionSettings, DatasetSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE
from ingest.freeze import freeze
from pipelines.cli import app, main
from tests.lakes import feedback, land, turn
from tests.unit.test_config import GOOD

ASKED = '{"messages": [{"role": "user", "content": "What rhymes with [bold]?"}]}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets: d1, accepted, of a, b and c; d2, which is not, of c again, d and e."""
    folder = tmp_path_factory.mktemp("installation")
    (folder / "everloop.toml").write_text(GOOD)
    home = folder / "here"
    answers = {name: f'{{"content": "{name} is what I think that you mean."}}' for name in "abcde"}
    for number, (name, answer) in enumerate(answers.items()):
        made: dict[str, Any] = {"policy": "helper", "finished_at": 100.0 + number, "output": [7] * (number + 1)}
        land(home / "lake", "turns", turn(name, answer=answer, request=ASKED, **made))
        land(
            home / "lake", "feedback", feedback(name, "accept" if number % 2 else "reject", received_at=200.0 + number)
        )
    for dataset_id, now, largest in (("d1", 202.5, 3), ("d2", 300.0, 3)):
        freeze(
            lake=home / "lake",
            datasets=home / "datasets",
            policy="helper",
            dataset_id=dataset_id,
            settings=DatasetSettings(max_turns=largest),
            attribution=AttributionSettings(),
            rewards=RewardSettings(),
            now=now,
            watermark=now,
        )
    one = home / "datasets" / "helper" / "d1"
    write_manifest(one, read_manifest(one, DatasetManifest, CANDIDATE))
    return folder


def call(folder: Path, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["dataset", *words, "--config", str(folder / "everloop.toml")])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def told(folder: Path, *words: str) -> Any:
    return json.loads(call(folder, *words, "--json").stdout)


def test_list_tells_what_was_accepted_and_what_was_not(folder: Path) -> None:
    listed = told(folder, "list")
    assert [(d["dataset_id"], d["state"], d["rows"]) for d in listed] == [("d2", "candidate", 3), ("d1", "accepted", 3)]
    text = call(folder, "list", "--policy", "helper").stdout
    assert "d1" in text
    assert "accepted" in text


def test_show_has_statistics_and_histograms(folder: Path, tmp_path: Path) -> None:
    shown = told(folder, "show", "d1")
    assert (shown["dataset_id"], shown["state"], shown["statistics"]["rows"]) == ("d1", "accepted", 3.0)
    spread = {h["name"]: dict(zip(h["labels"], h["counts"], strict=True)) for h in shown["histograms"]}
    assert spread["reward"] == {"-0.25": 2, "0.75": 1}
    assert spread["output tokens"] == {"1": 1, "2": 1, "3": 1}
    assert spread["version"] == {"base": 6}
    assert spread["state"]["settled"] == 3
    picture = tmp_path / "d1.png"
    text = call(folder, "show", "d1", "--picture", str(picture)).stdout
    assert "█" in text
    assert "reward specification" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "must end in one of .png" in call(folder, "show", "d1", "--picture", "d1.xls", code=2).output


def test_a_candidate_shows_what_it_was_refused_for(folder: Path) -> None:
    refused = folder / "here" / "datasets" / "helper" / "d2"
    candidate = read_manifest(refused, DatasetManifest, CANDIDATE)
    check = GateCheck(name="rewards differ", passed=False, observed="1", rows=("c", "d"))
    write_manifest(refused, msgspec.structs.replace(candidate, gate=(check,)), CANDIDATE)
    try:
        assert told(folder, "show", "d2")["state"] == "refused"
        assert "rewards differ  failed  1    c, d" in call(folder, "show", "d2").stdout
    finally:
        write_manifest(refused, candidate, CANDIDATE)


def test_diff_tells_rows_statistics_and_what_made_them(folder: Path) -> None:
    found = told(folder, "diff", "d1", "d2")
    assert (found["only_first"], found["only_second"], found["both"]) == ([["a", 0], ["b", 0]], [["d", 0], ["e", 0]], 1)
    assert found["statistics"]["tokens"] == [6.0, 12.0]
    assert set(found["made"]) == {"cut_at"}
    text = call(folder, "diff", "d1", "d2").stdout
    assert "2 rows only in d1: a/0, b/0" in text
    assert "cut_at" in text


def test_rows_are_shown_with_their_texts_as_long_as_the_lake_has_them(folder: Path) -> None:
    assert [row["turn_id"] for row in told(folder, "rows", "d1")] == ["a", "b", "c"]
    assert [row["turn_id"] for row in told(folder, "rows", "d1", "--limit", "2")] == ["a", "b"]
    (row,) = told(folder, "rows", "d1", "--turn", "b", "--text")
    assert (row["reward"], row["prompt_tokens"], row["output_tokens"], row["versions"]) == (0.75, 2, 2, ["base"])
    assert (row["said"], row["answered"]) == ("What rhymes with [bold]?", "b is what I think that you mean.")
    assert "What rhymes with [bold]?" in call(folder, "rows", "d1", "--text").stdout
    assert "(" not in call(folder, "rows", "d1").stdout, "versions are names, not as Python has them"
    DeltaTable(folder / "here" / "lake" / "turns").delete("turn_id = 'b'")
    (row,) = told(folder, "rows", "d1", "--turn", "b", "--text")
    assert (row["said"], row["answered"]) == (None, None)


def test_a_dataset_is_made_again(folder: Path, tmp_path: Path) -> None:
    said = call(folder, "refreeze", "d1", "--into", str(tmp_path)).stdout
    assert "d1 was made again, the same bytes: SHA-256" in said
    assert (tmp_path / "rows.parquet").read_bytes() == (
        folder / "here" / "datasets" / "helper" / "d1" / "rows.parquet"
    ).read_bytes()


def test_the_suites_of_the_gate_are_shown_with_the_users_changes(folder: Path) -> None:
    own = folder / "here" / "suites.toml"
    own.write_text(
        '[turns]\ndisable = ["a known end"]\n[turns.expect.quick]\nclass = "ExpectColumnMaxToBeBetween"\n'
        'column = "seconds"\nmax_value = 9'
    )
    listed = told(folder, "suites")
    assert {e["table"] for e in listed} == {"candidate", "turns", "feedback"}
    (mine,) = [e for e in listed if e["yours"]]
    assert (mine["name"], mine["class"]) == ("quick", "ExpectColumnMaxToBeBetween")
    assert mine["arguments"]["max_value"] == 9
    assert "a known end" not in [e["name"] for e in listed]
    assert "enough rows" in call(folder, "suites").stdout
    own.unlink()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "d9"), "there is no dataset d9: the newest are d"),
        (("diff", "d1", "d9"), "there is no dataset d9"),
        (("rows", "d1", "--turn", "z"), "dataset d1 has no row of the turn z"),
        (("list", "--policy", "nobody"), 'there is no policy "nobody"'),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("sys.argv", ["everloop", "dataset", *words, "--config", str(folder / "everloop.toml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "\udcff"),
        ("rewards", "explain", "\udcff"),
        ("log", "seek", "--turn", "\udcff"),
        ("dataset", "rows", "d1", "--turn", "\udcff"),
        ("forget", "--subject", "\udcff", "--yes"),
        ("forget", "--session", "\udcff", "--yes"),
    ],
)
def test_names_that_are_no_text_are_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "a name is text in UTF-8" in done.stderr) == (2, True)


def test_ids_are_completed_by_the_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for line, expected in (("everloop dataset show d", "d1\nd2"), ("everloop dataset diff d1 d2", "d2")):
        asked = {"_EVERLOOP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = CliRunner().invoke(app, [], prog_name="everloop", env=asked)
        assert done.output.strip() == expected
