"""The configuration: what is wrong with it is said in one sentence each."""

from pathlib import Path

import pytest

from pipelines.config import Config, load
from pipelines.config.reference import render
from pipelines.errors import ConfigError
from pipelines.home import Home

GOOD = """
[everloop]
home = "here"

[[engines]]
policy = "helper"

[[engines]]
policy = "helper"
role = "evaluation"

[policies.helper]
model = "models/small"

[policies.helper.evaluation]
suite = "questions.jsonl"
target = "mytask:score"

[policies.helper.schedule]
every_seconds = 5
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "everloop.toml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), environment)
    return caught.value.problems


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD), {})
    assert config.everloop.home == tmp_path / "here"
    assert config.policies["helper"].model == tmp_path / "models" / "small"
    assert config.policies["helper"].evaluation.suite == tmp_path / "questions.jsonl"
    without = load(written(tmp_path, GOOD.replace('home = "here"', "")), {})
    assert without.everloop.home == tmp_path / "everloop-home"
    assert load(written(tmp_path, GOOD.replace('"here"', '"/else/where"')), {}).everloop.home == Path("/else/where")


@pytest.mark.parametrize(
    ("named", "place"),
    [
        (None, "here/lake"),
        ("tables", "here/tables"),
        ("/else/where/", "/else/where"),
        ("s3://bucket/a prefix/", "s3://bucket/a prefix"),
    ],
)
def test_the_lake_is_below_the_home_folder_or_at_a_url(tmp_path: Path, named: str | None, place: str) -> None:
    text = GOOD + (f'\n[lake]\npath = "{named}"\n' if named else "")
    found = Home.of(load(written(tmp_path, text), {})).lake
    assert found == (place if "://" in place else tmp_path / place)


def test_a_url_with_credentials_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for url in ("s3://key:hush@bucket/lake", "s3://bucket/lake?secret=hush"):
        (said,) = problems(tmp_path, f'{GOOD}\n[lake]\npath = "{url}"\n')
        assert said.startswith("lake.path: ")
        assert "environment" in said
        assert "hush" not in said


@pytest.mark.parametrize("path", ["", "/", "~/lake", "file:///lake"])
def test_a_lake_that_is_nowhere_or_everywhere_is_refused(tmp_path: Path, path: str) -> None:
    (said,) = problems(tmp_path, f'{GOOD}\n[lake]\npath = "{path}"\n')
    assert said.startswith("lake.path: ")
    assert "below the home folder" in said


@pytest.mark.parametrize("path", ["s3://", "s3:///lake", "s3://bucket//lake"])
def test_a_url_that_names_no_bucket_or_an_empty_folder_is_refused(tmp_path: Path, path: str) -> None:
    (said,) = problems(tmp_path, f'{GOOD}\n[lake]\npath = "{path}"\n')
    assert said.startswith("lake.path: ")
    assert "scheme://bucket/prefix" in said


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (".", "holds the home folder"),
        ("..", "holds the home folder"),
        ("spool", "/here/spool is kept"),
        ("mlflow/lake", "/here/mlflow is kept"),
        ("run/../datasets/helper", "/here/datasets is kept"),
        ("elsewhere", "/here/logs is kept"),
        ("a[b", "another folder or prefix"),
        ("a\\\\b", "another folder or prefix"),
        ("a%20b", "another folder or prefix"),
        ("s3://bucket/a|b", "another folder or prefix"),
    ],
)
def test_a_lake_is_somewhere_of_its_own_where_tables_can_be(tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "here" / "logs").mkdir(parents=True)
    (tmp_path / "here" / "elsewhere").symlink_to("logs")
    (said,) = problems(tmp_path, f'{GOOD}\n[lake]\npath = "{path}"\n')
    assert said.startswith("lake.path: ")
    assert what in said


def test_a_home_where_there_can_be_no_tables_is_refused_unless_the_lake_is_elsewhere(tmp_path: Path) -> None:
    text = GOOD.replace('"here"', '"he[re"')
    (said,) = problems(tmp_path, text)
    assert "another [everloop] home" in said
    load(written(tmp_path, f'{text}\n[lake]\npath = "/100% of: it? (a #1, *)"\n'), {})


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    config = load(
        written(tmp_path, GOOD),
        {
            "EVERLOOP__POLICIES__HELPER__SCHEDULE__MIN_TURNS": "7",
            "EVERLOOP__ENGINES__1__PORT": "8123",
            "EVERLOOP__EVERLOOP__HOME": "elsewhere",
            "EVERLOOP__LOG__KIND": "kafka",
            "EVERLOOP_CONTROL_TOKEN": "not a setting",
        },
    )
    assert config.policies["helper"].schedule.min_turns == 7
    assert config.engines[1].port == 8123
    assert config.everloop.home == tmp_path / "elsewhere"
    assert config.log.kind == "kafka"


def test_a_policy_without_a_target_is_refused_for_nothing_could_be_promoted(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, GOOD.replace('target = "mytask:score"\n', ""))
    assert problem.startswith(
        "policies.helper: evaluation.target is not set, and without one the best verdict is canary"
    )
    assert problem.endswith('target = "module:function"')


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD + "mim_turns = 3\n") == [
        '[policies.helper.schedule] has no key "mim_turns": did you mean "min_turns"?'
    ]
    assert problems(tmp_path, GOOD + "[gatewy]\nport = 1\n") == [
        'the configuration has no key "gatewy": did you mean "gateway"?'
    ]
    assert problems(tmp_path, GOOD.replace("[policies.helper]\n", "[policies.helper]\ntrainr = {}\n")) == [
        '[policies.helper] has no key "trainr": did you mean "trainer"?'
    ]
    assert problems(tmp_path, GOOD.replace('role = "evaluation"', 'rule = "evaluation"')) == [
        '[engines[1]] has no key "rule": did you mean "role"?'
    ]
    (said,) = problems(tmp_path, GOOD, EVERLOOP__GATEWAY__PROT="1")
    assert said == '[gateway] has no key "prot": did you mean "port"?'


def test_every_problem_is_told(tmp_path: Path) -> None:
    said = problems(tmp_path, GOOD + "min_turns = 0\nstop_seconds = -1\n")
    assert len(said) == 2
    assert said[0].startswith("policies.helper.schedule.min_turns: input should be greater than or equal to 1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('model = "models/small"', ""), "policies.helper.model is missing: set it"),
        (("every_seconds = 5", 'every_seconds = 5\ncron = "0 * * * *"'), "choose one"),
        (('policy = "helper"', 'policy = "other"'), 'policy "helper" has no engine of the role'),
        (('role = "evaluation"', 'role = "judge"'), "engines.1.role: input should be 'serve' or 'evaluation'"),
        (('[everloop]\nhome = "here"', "[gateway]\nport = 8001\n[mlflow]\nport = 8001"), "are both 8001"),
        (('home = "here"', "home = "), "is not TOML"),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert any(said in problem for problem in problems(tmp_path, GOOD.replace(*change)))


def test_a_missing_file_and_a_stray_variable_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist: name the configuration with --config"):
        load(tmp_path / "no.toml", {})
    (said,) = problems(tmp_path, GOOD, EVERLOOP__ENGINES__7__PORT="1")
    assert said == "the environment variable EVERLOOP__ENGINES__7__PORT names nothing in the configuration"


def test_policies_have_names_that_folders_and_urls_can_have(tmp_path: Path) -> None:
    text = GOOD.replace("policies.helper", 'policies."Help er"').replace('"helper"', '"Help er"')
    assert "lower-case letters" in problems(tmp_path, text)[0]


def test_auto_means_the_log_that_was_found(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD), {})
    assert config.log.kind == "auto"
    assert config.log.own_broker
    assert config.log_settings(None).kind == "embedded"
    found = config.log_settings("127.0.0.1:1234")
    assert (found.kind, found.bootstrap) == ("kafka", "127.0.0.1:1234")
    assert not load(written(tmp_path, GOOD + '[log]\nbootstrap = "b:9092"\n'), {}).log.own_broker


def test_the_reference_describes_every_key() -> None:
    text = render(Config)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    undescribed = [row for row in rows if row.rstrip().endswith("| |")]
    assert undescribed == []
    for title in ("[everloop]", "[[engines]]", "[policies.NAME.schedule]", "[policies.NAME.trainer.lora]"):
        assert f"## `{title}`" in text
