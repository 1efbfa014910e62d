"""The pure parts of the local stack: ports, secrets, checks, supervisord's configuration."""

import configparser
import socket
import sqlite3
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ingest.contracts.rollout import RolloutState
from pipelines.cli.output import print_table
from pipelines.config import load
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.stack import addresses, checks, programs, secrets
from pipelines.stack.up import Stack
from promotion import rollout
from serving.config import GatewaySettings
from serving.gateway.__main__ import parser as gateway_parser
from tests.checkpoint_folders import make_checkpoint
from tests.unit.test_config import GOOD


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "everloop.toml"
    path.write_text(GOOD.replace("[everloop]", "[gateway]\nport = 0\n[everloop]\nmin_free_disk_gb = 0"))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "here").create()


def test_free_ports_are_chosen_once_and_remembered(config_path: Path, home: Home) -> None:
    config = load(config_path, {})
    first = addresses.choose(config, home, kafka=True)
    assert addresses.choose(config, home, kafka=True) == first == addresses.load(home)
    assert len(set(first.ports.values())) == len(first.ports)
    assert first.kafka == f"127.0.0.1:{first.ports['kafka']}"
    assert {"engine-0", "engine-1", "gateway", "control", "mlflow"} <= set(first.ports)
    assert addresses.choose(config, home, kafka=False).kafka is None


def test_a_remembered_port_that_was_taken_is_chosen_anew(config_path: Path, home: Home) -> None:
    config = load(config_path, {})
    first = addresses.choose(config, home, kafka=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", first.ports["control"]))
        other.listen()
        second = addresses.choose(config, home, kafka=False)
    assert second.ports["control"] != first.ports["control"]
    assert second.ports["gateway"] == first.ports["gateway"]


def test_a_configured_port_in_use_is_a_sentence(config_path: Path, home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = load(config_path, {"EVERLOOP__GATEWAY__PORT": str(port)})
        with pytest.raises(PipelineError, match=rf"port {port} is in use: .* set another in \[gateway\] port"):
            addresses.choose(config, home, kafka=False)
        (said,) = [check.advice for check in checks.ports(config) if not check.ok]
        assert f"port {port} (gateway) is in use" in said


def test_what_leftovers_of_this_stack_hold_keeps_no_new_one_from_starting(config_path: Path, home: Home) -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        values = {"GATEWAY__PORT": str(ours.getsockname()[1]), "EVERLOOP__MIN_FREE_MEMORY_GB": "1e9"}
        config = load(config_path, {f"EVERLOOP__{name}": value for name, value in values.items()})
        fresh = {check.name for check in checks.all_of(config, home.root, begun=False) if not check.ok}
        assert {"port of gateway", "memory"} <= fresh
        begun = {check.name for check in checks.all_of(config, home.root, begun=True) if not check.ok}
        assert begun == fresh - {"port of gateway", "memory"}


def test_a_table_shows_what_stands_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("what to do",), [("set another in [gateway] port",)])
    assert "set another in [gateway] port" in capsys.readouterr().out


def test_a_stack_that_never_ran_is_a_sentence(home: Home) -> None:
    with pytest.raises(PipelineError, match=r"nothing ever ran in .*: start it with `everloop up`"):
        addresses.load(home)


def test_secrets_are_made_once_for_their_owner_only(home: Home) -> None:
    path = home.run / "secrets.json"
    made = secrets.load_or_create(path)
    assert secrets.load_or_create(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.control_token not in repr(made)
    assert len(bytes.fromhex(made.hash_secret)) == 32
    secrets.save(path, made.with_evaluation_key("el-x", "key-1"))
    assert secrets.load_or_create(path).evaluation_key == "el-x"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_the_machine_lacks_is_a_sentence_each(config_path: Path, tmp_path: Path) -> None:
    config = load(config_path, {"EVERLOOP__EVERLOOP__MIN_FREE_DISK_GB": "1e9"})
    wrong = {c.name: c.advice for c in checks.machine(config, tmp_path / "x", memory=10**9) if not c.ok}
    assert "min_free_disk_gb" in wrong["disk"]
    assert "1.0 GB of memory are available" in wrong["memory"]
    long = tmp_path / ("x" * 100)
    assert "choose a shorter home" in {c.name: c.advice for c in checks.machine(config, long) if not c.ok}["socket"]
    missing = {c.name: c.advice for c in checks.models(config) if not c.ok}
    assert "set policies.helper.model" in missing["model of helper"]
    assert "set policies.helper.evaluation.suite" in missing["suite of helper"]


def test_suites_of_the_users_own_are_read_before_anything_starts(config_path: Path, home: Home) -> None:
    config = load(config_path, {})
    assert not list(checks.gates(config, home.root))
    home.root.mkdir(exist_ok=True)
    (home.root / "suites.toml").write_text('[turns]\ndisable = ["a known end"]')
    (right,) = checks.gates(config, home.root)
    assert (right.name, right.ok) == ("gate of helper", True)
    (home.root / "suites.toml").write_text('[turns]\ndisable = ["a known ending"]')
    (wrong,) = checks.gates(config, home.root)
    assert 'disables "a known ending", which there is not: a known end: see docs/gate.md' in wrong.advice
    named = load(config_path, {"EVERLOOP__POLICIES__HELPER__GATE__SUITES": "own.toml"})
    assert "own.toml does not exist" in next(check.advice for check in checks.gates(named, home.root))


def test_what_another_version_kept_is_told_before_anything_starts(home: Home) -> None:
    assert [(check.name, check.ok) for check in checks.kept(home)] == [("lake", True)]
    assert not Path(home.lake).exists(), "a look makes nothing"
    DeltaTable.create(f"{home.lake}/turns", pa.schema({"turn_id": pa.string()}))
    sqlite3.connect(home.receipts).execute("CREATE TABLE receipts (receipt_id)")
    lake, receipts = checks.kept(home)
    assert not lake.ok
    assert "start a new one in another place" in lake.advice
    assert not receipts.ok
    assert "ask again with `everloop forget`" in receipts.advice


def test_functions_are_found_beside_the_configuration_or_are_a_sentence(config_path: Path) -> None:
    def said() -> str:
        (check,) = (c for c in checks.models(load(config_path, {})) if c.name == "functions of helper")
        return "" if check.ok else check.advice

    text = config_path.read_text().replace("mytask:score", "beside_the_file:score")
    config_path.write_text(text)
    assert "policies.helper.evaluation.target names beside_the_file:score, which cannot be imported" in said()
    module = config_path.with_name("beside_the_file.py")
    module.write_text("def score(:")
    assert "invalid syntax" in said()
    module.write_text("def score(question, answer, finish): return 1.0")
    assert said() == ""


def test_the_supervisors_configuration_has_every_process_and_no_secret(config_path: Path, home: Home) -> None:
    config = load(
        config_path, {"EVERLOOP__ENGINES__0__ENVIRONMENT__RATE": '"5%"', "EVERLOOP__ENGINES__0__ARGS": '["-x"]'}
    )
    made = secrets.load_or_create(home.run / "secrets.json")
    where = addresses.choose(config, home, kafka=True)
    found = programs.programs(config, config_path, home, where, {"helper": "c7"}, {"EVERLOOP__A": "1"})
    text = programs.render(found, home, tmp := config_path.parent)
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    names = {name.removeprefix("program:") for name in parser.sections() if name.startswith("program:")}
    assert names == {
        *("kafka", "forwarder", "control", "mlflow", "gateway", "engine-0", "engine-1", "reconciler", "scheduler")
    }
    assert set(programs.FIRST) <= names
    engine = parser["program:engine-0"]
    assert f"--model {home.checkpoint('helper', 'c7') / 'export'} --version c7" in engine["command"]
    assert engine["command"].endswith("-- -x")
    assert engine["command"].startswith("env rate=5%% ")
    assert engine["directory"] == str(tmp)
    assert parser["program:scheduler"]["command"].startswith("env EVERLOOP_CONFIG_DIGEST=")
    assert " EVERLOOP__A=1 " in parser["program:scheduler"]["command"]
    assert not any(value in text for value in made.environment().values())


def test_what_the_configuration_says_of_the_log_reaches_the_gateway(config_path: Path, home: Home) -> None:
    values = {"ack": "broker", "segment_bytes": 1 << 20, "segment_seconds": 0.5, "max_bytes": 8 << 20}
    given = values | {"kind": "kafka"}
    config = load(config_path, {f"EVERLOOP__LOG__{name.upper()}": str(value) for name, value in given.items()})
    where = addresses.choose(config, home, kafka=True)
    found = programs.programs(config, config_path, home, where, {"helper": "base"}, {})
    gateway = next(program for program in found if program.name == "gateway")
    options = gateway_parser().parse_args(gateway.command[3:])
    assert {name: getattr(options, name) for name in values} == values


def test_traces_of_the_engines_go_where_the_gateways_go(config_path: Path, home: Home) -> None:
    url = "http://collector:4318/v1/traces"
    for environment, told in (({"EVERLOOP__GATEWAY__OTLP_ENDPOINT": url}, True), ({}, False)):
        config = load(config_path, environment)
        where = addresses.choose(config, home, kafka=False)
        found = programs.programs(config, config_path, home, where, {"helper": "base"}, {})
        engines = [program.command for program in found if program.name.startswith("engine-")]
        assert engines
        assert all(("--otlp-endpoint" in command and url in command) == told for command in engines)
        settings = programs.settings_file(home, config.gateway, GatewaySettings)[1]
        assert (url.encode() in settings) == told


def test_without_kafka_there_is_no_broker_and_with_an_outside_one_none_of_ours(config_path: Path, home: Home) -> None:
    def names(kafka: bool, **environment: str) -> set[str]:
        config = load(config_path, environment)
        where = addresses.choose(config, home, kafka)
        return {p.name for p in programs.programs(config, config_path, home, where, {"helper": "base"}, {})}

    assert {"kafka", "forwarder"} & names(False) == set()
    assert {"kafka", "forwarder"} & names(True, EVERLOOP__LOG__BOOTSTRAP="b:9092") == {"forwarder"}


def test_engines_start_from_what_serves_and_a_running_stack_keeps_what_it_was_started_from(
    config_path: Path, home: Home
) -> None:
    stack = Stack(load(config_path, {}), config_path)
    assert stack.start_versions(running=False) == {"helper": "base"}
    S = RolloutState
    for name, path in (
        ("c1", (S.REGISTERED, S.ACCEPTED, S.ROLLING, S.SERVING)),
        ("c2", (S.REGISTERED, S.ACCEPTED, S.ROLLING, S.SERVING, S.RETIRED)),
    ):
        folder = make_checkpoint(home.checkpoints, name, policy="helper")
        for state in path:
            rollout.move(folder, state, reason="", now=1.0)
    assert stack.start_versions(running=True) == {"helper": "base"}
    assert stack.start_versions(running=False) == {"helper": "c1"}
