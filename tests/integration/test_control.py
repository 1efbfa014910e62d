"""The control process over HTTP: its table of routes, its states, and a restart in the middle."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ingest.contracts.fleet import EngineState, Refusal
from tests.integration.serving_stack import Stack, wait_until

pytestmark = pytest.mark.integration
POLICY = {"name": "policy", "desired": {"version": "base", "path": "/base"}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("control"))
    try:
        stack.start_control()
        yield stack
    finally:
        stack.stop_all()


@pytest.fixture
def stack(running: Stack) -> Stack:
    """One control for all tests, as if it were new: no engines, no keys in force, the policy as it was made."""
    running.control("PUT", "/v1/policies/policy", POLICY).raise_for_status()
    running.control("PUT", "/v1/policies/policy/desired", POLICY["desired"]).raise_for_status()
    running.control("PUT", "/v1/policies/policy/under_evaluation", None).raise_for_status()
    for engine in states(running):
        running.control("DELETE", f"/v1/engines/{engine}").raise_for_status()
    for key in running.control("GET", "/v1/snapshot").json()["keys"]:
        running.control("DELETE", f"/v1/keys/{key['key_id']}").raise_for_status()
    return running


def fleet(stack: Stack) -> dict:
    return stack.control("GET", "/v1/fleet").json()


def states(stack: Stack) -> dict[str, str]:
    return {engine["engine_id"]: engine["state"] for engine in fleet(stack)["engines"]}


def test_the_token_and_the_shape_of_errors(stack: Stack) -> None:
    for path in ("/v1/snapshot", "/v1/nothing", "/openapi.json", "/docs", "/", "//health", "/health/"):
        for headers in ({}, {"authorization": "Bearer guess"}):
            answer = httpx.get(f"{stack.control_url}{path}", headers=headers)
            assert answer.status_code == 401, path
            assert set(answer.json()) == {"error"}
    assert httpx.get(f"{stack.control_url}/health").json() == {"status": "ok"}
    for method, path, body, status in (
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/openapi.json", None, 404),
        ("PUT", "/v1/policies/other", POLICY, 400),
        ("PUT", "/v1/policies/policy", {"name": "policy"}, 400),
        ("PUT", "/v1/policies/other/desired", {"version": "a", "path": "b"}, 404),
        ("POST", "/v1/keys", {"name": "x", "roles": ["king"]}, 400),
        ("POST", "/v1/keys", {"name": "", "roles": ["inference"]}, 400),
        ("POST", "/v1/keys", {"name": "x", "roles": []}, 400),
        ("POST", "/v1/keys", {"name": "x", "roles": ["inference"], "concurrency": 0}, 400),
        ("POST", "/v1/keys", {"name": "x", "roles": ["inference"], "requests_per_minute": -1}, 400),
        ("PUT", "/v1/policies/policy", {**POLICY, "redaction": {"patterns": ["passport"]}}, 400),
        ("PUT", "/v1/policies/policy", {**POLICY, "redaction": {"expressions": {"x": "(a"}}}, 400),
        ("PUT", "/v1/opted_out/anna", None, 400),
        ("DELETE", f"/v1/opted_out/{'0' * 32}", None, 404),
        ("DELETE", "/v1/keys/none", {}, 404),
        ("DELETE", "/v1/engines/none", {}, 404),
        ("POST", "/v1/swaps", [1], 400),
        ("GET", "/v1/swaps?since=yesterday", None, 400),
    ):
        answer = stack.control(method, path, body)
        assert answer.status_code == status, (path, answer.text)
        assert isinstance(answer.json()["error"], str)


def test_a_key_is_shown_once_and_kept_as_a_digest(stack: Stack) -> None:
    made = stack.control("POST", "/v1/keys", {"name": "app", "roles": ["inference"], "concurrency": 3}).json()
    assert made["key"].startswith("el-")
    listed = stack.control("GET", "/v1/keys").json()["keys"][-1]
    assert (listed["key_id"], listed["name"], listed["concurrency"]) == (made["key_id"], "app", 3)
    assert "digest" not in listed
    everything = b"".join(path.read_bytes() for path in (stack.home / "control").iterdir())
    assert made["key"].encode() not in everything
    assert made["key"] not in (stack.home / "control.log").read_text()
    stack.control("DELETE", f"/v1/keys/{made['key_id']}").raise_for_status()
    assert stack.control("GET", "/v1/keys").json()["keys"][-1]["revoked_at"]
    assert stack.control("GET", "/v1/snapshot").json()["keys"] == []


def test_the_snapshot_changes_when_something_in_it_does(stack: Stack) -> None:
    stack.beat("e", "http://e")
    first = stack.control("GET", "/v1/snapshot")
    headers = {"authorization": "Bearer control-token", "if-none-match": first.headers["etag"]}

    def status() -> int:
        return httpx.get(f"{stack.control_url}/v1/snapshot", headers=headers).status_code

    stack.beat("e", "http://e")
    assert status() == 304
    stack.beat("e", "http://e", state=EngineState.SWAPPING)
    assert status() == 200
    assert first.json()["engines"][0]["token"]
    assert "token" not in fleet(stack)["engines"][0]


def test_settings_are_replaced_and_versions_kept(stack: Stack) -> None:
    stack.control("PUT", "/v1/policies/policy/desired", {"version": "v2", "path": "/v2"}).raise_for_status()
    stack.control("PUT", "/v1/policies/policy/under_evaluation", {"version": "v3", "path": "/v3"}).raise_for_status()
    told = stack.control("PUT", "/v1/policies/policy", {**POLICY, "sampling": {"temperature": 1.0}}).json()
    assert told["desired"]["version"] == "v2"
    assert told["under_evaluation"]["version"] == "v3"
    assert told["sampling"] == {"temperature": 1.0}
    stack.control("PUT", "/v1/policies/policy/under_evaluation", None).raise_for_status()
    assert "under_evaluation" not in fleet(stack)["policies"][0]


def test_a_policys_redaction_is_told_to_gateways_and_can_be_taken_back(stack: Stack) -> None:
    redaction = {"patterns": ["email"], "expressions": {"order": "ORD-[0-9]+"}, "function": "somewhere:f"}
    stack.control("PUT", "/v1/policies/policy", {**POLICY, "redaction": redaction}).raise_for_status()
    (told,) = stack.control("GET", "/v1/snapshot").json()["policies"]
    assert told["redaction"] == redaction
    stack.control("PUT", "/v1/policies/policy", POLICY).raise_for_status()
    assert "redaction" not in stack.control("GET", "/v1/snapshot").json()["policies"][0]


def test_who_opted_out_is_told_to_gateways_by_hash_until_opted_in(stack: Stack) -> None:
    anna, ben = "a" * 32, "b" * 32
    before = stack.control("GET", "/v1/snapshot").json()["revision"]
    for subject in (anna, ben, anna):
        stack.control("PUT", f"/v1/opted_out/{subject}").raise_for_status()
    snapshot = stack.control("GET", "/v1/snapshot").json()
    assert snapshot["opted_out"] == [anna, ben]
    assert snapshot["revision"] > before
    listed = stack.control("GET", "/v1/opted_out").json()["opted_out"]
    assert [row["subject"] for row in listed] == [anna, ben]
    assert listed[0]["since"] <= listed[1]["since"]
    for subject in (anna, ben):
        stack.control("DELETE", f"/v1/opted_out/{subject}").raise_for_status()
    assert stack.control("GET", "/v1/snapshot").json()["opted_out"] == []


def test_engines_swap_in_turn_and_the_fleet_converges(stack: Stack) -> None:
    for name in ("a", "b"):
        assert stack.beat(name, "http://x")["target"]["version"] == "base"
    assert fleet(stack)["converged"] == {"policy": True}
    assert put_reference(stack, "v2").status_code == 200
    stack.control("PUT", "/v1/policies/policy/desired", {"version": "v2", "path": "/v2"}).raise_for_status()
    told = stack.beat("a", "http://x")
    assert told["target"] == {"version": "v2", "path": "/v2"}
    assert told["reference"]["checksum"] == "c"
    assert "target" not in stack.beat("b", "http://x")
    stack.beat("a", "http://x", state=EngineState.SWAPPING)
    assert "target" not in stack.beat("b", "http://x")
    stack.beat("a", "http://x", version="v2")
    assert stack.beat("b", "http://x")["target"]["version"] == "v2"
    assert fleet(stack)["converged"] == {"policy": False}
    stack.beat("b", "http://x", version="v2")
    assert fleet(stack)["converged"] == {"policy": True}


def test_without_a_reference_engines_leave_service_one_at_a_time(stack: Stack) -> None:
    for name in ("a", "b"):
        stack.beat(name, "http://x")
    stack.control("PUT", "/v1/policies/policy/desired", {"version": "cold", "path": "/cold"}).raise_for_status()
    assert stack.beat("a", "http://x")["target"]["version"] == "cold"
    for state in (EngineState.READY, EngineState.DRAINING, EngineState.JOINING):
        stack.beat("a", "http://x", state=state)
        assert "target" not in stack.beat("b", "http://x")
    refusal = Refusal(version="cold", error="vLLM ended with 3")
    assert "target" not in stack.beat("a", "http://x", refusal=refusal)
    assert stack.beat("b", "http://x")["target"]["version"] == "cold"
    stack.beat("b", "http://x", state=EngineState.DRAINING)
    again = Refusal(version="cold", error="vLLM ended with 3", standing=False)
    assert "target" not in stack.beat("a", "http://x", refusal=again)
    stack.beat("b", "http://x", state=EngineState.JOINING)
    put_reference(stack, "cold").raise_for_status()
    assert stack.beat("a", "http://x", refusal=again)["reference"]["version"] == "cold"
    stack.beat("b", "http://x", version="cold")
    stack.beat("a", "http://x", version="cold")
    assert fleet(stack)["converged"] == {"policy": True}


def put_reference(stack: Stack, version: str, build: str = "stand-in", **more: object) -> httpx.Response:
    reference = {"version": version, "build": build, "checksum": "c", "sequences": [[1, 2]], "logprobs": [[-1.0]]}
    return stack.control("PUT", "/v1/policies/policy/references", {**reference, "noise": 0.0, **more})


def test_the_first_reference_of_a_version_and_build_stands(stack: Stack) -> None:
    for build in ("stand-in", "another"):
        assert put_reference(stack, "kept", build).status_code == 200
    for more in ({}, {"logprobs": [[-1.00005]]}, {"noise": 0.5}, {"sequences": [[1, 3]], "logprobs": [[-7.0]]}):
        assert put_reference(stack, "kept", **more).status_code == 200
    for more in ({"checksum": "d"}, {"logprobs": [[-1.5]]}, {"logprobs": [[-1.5]], "noise": 1.0}):
        answer = put_reference(stack, "kept", **more)
        assert answer.status_code == 409
        assert "This load of kept is not what the first one on stand-in was: " in answer.json()["error"]
    stack.beat("e", "http://x")
    stack.control("PUT", "/v1/policies/policy/desired", {"version": "kept", "path": "/kept"}).raise_for_status()
    reference = stack.beat("e", "http://x")["reference"]
    assert (reference["checksum"], reference["logprobs"], reference["noise"]) == ("c", [[-1.0]], 0.0)
    joining = {"url": "http://x", "state": EngineState.JOINING}
    assert stack.beat("f", **joining, build="another")["reference"]["build"] == "another"
    assert "reference" not in stack.beat("g", **joining, build="third")
    assert "reference" not in stack.beat("h", **joining, role="evaluation")  # it loads cold, always


def test_states_follow_the_table(stack: Stack) -> None:
    stack.beat("e", "http://x")
    stack.beat("e", "http://x", state=EngineState.DRAINING)
    body = {"policy": "policy", "url": "u", "token": "t", "role": "serve", "state": "ready", "version": "base"}
    answer = stack.control("POST", "/v1/engines/e/heartbeat", body)
    assert answer.status_code == 409
    assert "draining" in answer.json()["error"]
    assert states(stack) == {"e": "draining"}
    stack.control("DELETE", "/v1/engines/e").raise_for_status()
    assert states(stack) == {}


def test_what_an_engine_refuses_is_told_until_it_takes_it_in(stack: Stack) -> None:
    refusal = Refusal(version="v2", error="its head is stale", attempts=2)
    stack.beat("a", "http://x", refusal=refusal, error="its head is stale")
    stack.beat("b", "http://x")
    a, b = fleet(stack)["engines"]
    assert (a["refusal"], a["version"]) == ({"version": "v2", "error": "its head is stale", "attempts": 2}, "base")
    assert "refusal" not in b
    stack.beat("a", "http://x", version="v2")
    assert "refusal" not in fleet(stack)["engines"][0]


def test_silent_engines_are_lost_and_may_come_back(stack: Stack) -> None:
    stack.beat("e", "http://x")
    wait_until(lambda: states(stack) == {"e": "lost"}, "the engine to be lost")
    assert fleet(stack)["converged"] == {"policy": False}
    stack.beat("e", "http://x")
    assert states(stack) == {"e": "ready"}


def test_a_restart_loses_nothing_and_asks_engines_anew(stack: Stack) -> None:
    made = stack.control("POST", "/v1/keys", {"name": "app", "roles": ["inference"]}).json()
    stack.beat("a", "http://x")
    stack.beat("b", "http://x")
    stack.control("PUT", "/v1/policies/policy/desired", {"version": "v2", "path": "/v2"}).raise_for_status()
    assert stack.beat("a", "http://x")["target"]["version"] == "v2"
    swap = {
        **{"engine_id": "a", "policy": "policy", "from_version": "base", "to_version": "v2", "load": "hot"},
        **{"started_at": 5.0, "pause_ms": 1.0, "load_ms": 1.0, "verify_ms": 1.0, "total_ms": 3.0},
    }
    stack.control("POST", "/v1/swaps", swap).raise_for_status()
    before = stack.control("GET", "/v1/snapshot").json()
    stack.stop("control", signal.SIGKILL)
    stack.start_control()
    assert stack.control("GET", "/v1/snapshot").json() == before
    assert "target" not in stack.beat("b", "http://x")
    assert stack.control("GET", "/v1/keys").json()["keys"][-1]["key_id"] == made["key_id"]
    assert stack.control("GET", "/v1/swaps?policy=policy&since=1").json()["swaps"] == [swap]
    assert stack.control("GET", "/v1/swaps?policy=policy&since=6").json()["swaps"] == []
    assert stack.control("GET", "/v1/swaps?policy=other").json()["swaps"] == []


def test_what_keeps_control_from_starting_is_one_sentence(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    taken = ["--port", str(stack.control_port), "--database", str(tmp_path / "x.db")]
    unusable = ["--port", "0", "--database", str(tmp_path / "file" / "x.db")]
    for arguments, says in ((taken, "cannot be bound"), (unusable, "cannot be used")):
        process = stack.start("second", "serving.control", *arguments)
        assert process.wait(120) == 2
        text = (stack.home / "second.log").read_text()
        assert says in text
        assert "Traceback" not in text
        del stack.processes["second"]
