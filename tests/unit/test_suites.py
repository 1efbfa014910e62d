"""Suites of the user's own: they add, replace and disable; whatever is wrong is said before anything runs."""

import re
from pathlib import Path

import pytest

from ingest.config import GateSettings
from ingest.frames import COLUMNS
from ingest.gate import GateBroken, GateFailed, whole_suites
from ingest.suites import SuiteError, read_suites
from tests.gates import SETTINGS, ask, fill, good_rows, propose

DOCUMENT = Path(__file__).parents[2] / "docs" / "gate.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "suites.toml"
    path.write_text(text)
    return path


def test_expectations_are_added_replaced_and_disabled(tmp_path: Path, docs: Path) -> None:
    write(
        tmp_path,
        """
        [candidate]
        disable = ["enough rows", "acceptance like the last dataset's"]

        [candidate.expect."short answers"]
        class = "ExpectColumnMeanToBeBetween"
        column = "output_tokens"
        max_value = 2

        [candidate.expect."a weight"]
        class = "ExpectColumnValuesToBeInSet"
        column = "weight"
        value_set = [2.0]
        row_condition = "reward > 0"

        [turns.expect."quick"]
        class = "ExpectColumnMaxToBeBetween"
        column = "seconds"
        max_value = 0.5
        """,
    )
    propose(tmp_path, good_rows()[:3])
    with pytest.raises(GateFailed) as caught:
        ask(tmp_path, docs)
    assert {check.name: set(check.rows) for check in caught.value.checks} == {
        "short answers": {"a", "b", "c"},
        "a weight": {"b"},
        "turns: quick": {"t0", "t1"},
    }
    (tmp_path / "suites.toml").unlink()
    with pytest.raises(GateFailed, match="enough rows"):
        ask(tmp_path, docs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[candidates]", r"there is no table \[candidates\]: candidate"),
        ("candidate = 1", "candidate must be a table"),
        ("[candidate]\nexpects = 1", r"\[candidate\] has no expects: expect"),
        ('[candidate]\ndisable = "enough rows"', "disable must be a list of names"),
        ("[candidate]\nexpect = 1", "must be a table with class and arguments"),
        ("[candidate", "suites.toml: "),
        ('[candidate]\ndisable = ["enough row"]', 'disables "enough row", which there is not: enough rows'),
        ('[candidate]\ndisable = ["x"]\n[candidate.expect.x]', 'disables "x", which there is not'),
        ('[candidate.expect.x]\ncolumn = "reward"', 'candidate "x": class is missing'),
        ('[candidate.expect.x]\nclass = "ExpectColumnMean"', "no class ExpectColumnMean: ExpectColumnMeanToBeBetween"),
        ('[candidate.expect.x]\nclass = "ExpectQueryResultsToMatchComparison"', "there is no class ExpectQuery"),
        (
            '[turns.expect.x]\nclass = "ExpectColumnValuesToBeNull"\ncolumn = "reward"',
            'turns "x": there is no column reward',
        ),
        ('[turns.expect.x]\nclass = "ExpectColumnValuesToBeNull"', "column: field required"),
        (
            '[turns.expect.x]\nclass = "ExpectColumnMeanToBeBetween"\ncolumn = "failed"\nmaximum = 1',
            "maximum: extra fields not permitted",
        ),
        (
            '[turns.expect.x]\nclass = "ExpectColumnMeanToBeBetween"\ncolumn = "failed"\nmax_value = 1\nmin_value = 2',
            "min_value 2 is above max_value 1",
        ),
        (
            '[turns.expect.x]\nclass = "ExpectColumnValuesToMatchRegex"\ncolumn = "arm"\nregex = "("',
            r"the expression \( does not compile",
        ),
        (
            '[turns.expect.x]\nclass = "ExpectColumnValuesToMatchRegex"\ncolumn = "arm"\nregex = 5',
            "the expression 5 does not compile",
        ),
        (
            '[turns.expect.x]\nclass = "ExpectColumnValuesToMatchRegexList"\ncolumn = "arm"\nregex_list = 5',
            "regex_list must be a list",
        ),
        (
            '[turns.expect.x]\nclass = "ExpectCompoundColumnsToBeUnique"\ncolumn_list = 5',
            "column_list must be a list",
        ),
        ('[turns.expect.x]\nclass = ["ExpectColumnValuesToBeNull"]', "there is no class"),
        ('[turns.expect.x]\nclass = "ExpectColumnValuesToBeNull"\ncolumn = ["arm"]', "there is no column"),
        (
            '[turns.expect.x]\nclass = "ExpectColumnValuesToBeNull"\ncolumn = "arm"\nresult_format = "BASIC"',
            "result_format is not to be set",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, docs: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    propose(tmp_path, good_rows())
    fill(tmp_path / "lake")
    results = set(docs.rglob("*"))
    with pytest.raises(SuiteError, match=said):
        ask(tmp_path, docs)
    assert set(docs.rglob("*")) == results


def test_a_file_that_is_named_must_exist(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows())
    with pytest.raises(SuiteError, match=r"own\.toml does not exist"):
        ask(tmp_path, docs, settings=SETTINGS.model_copy(update={"suites": Path("own.toml")}))


def test_a_file_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "suites.toml"
    file.write_bytes(b"# na\xefve")
    with pytest.raises(SuiteError, match="cannot be read: 'utf-8'"):
        read_suites(file, required=False)
    file.unlink()
    file.mkdir()
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suites(file, required=False)


def test_what_great_expectations_cannot_do_breaks_the_gate(tmp_path: Path, docs: Path) -> None:
    asked = '[candidate.expect.x]\nclass = "ExpectColumnQuantileValuesToBeBetween"\ncolumn = "reward"\n'
    write(tmp_path, asked + "quantile_ranges = {quantiles = [0.5], value_ranges = [[0, 1]]}")
    propose(tmp_path, good_rows())
    with pytest.raises(GateBroken, match="could not run the suite of candidate"):
        ask(tmp_path, docs)


def test_the_documents_example_is_right_and_its_columns_are_those_that_there_are(tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    asked = whole_suites("p", GateSettings(), read_suites(write(tmp_path, example), required=True))
    assert "short answers" in [expectation.meta["name"] for expectation in asked["candidate"]]
    for table, columns in COLUMNS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{table}` |")]
        assert re.findall(r"`(\w+)`", line) == [table, *columns]
