"""The stage against a small gateway that keeps the contract of /v1/chat/completions, and sometimes does not."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evaluation.config import EvaluationSettings, SamplingSettings
from evaluation.errors import EvaluationError, SamplingError, SuiteError
from evaluation.stage import evaluate
from ingest.contracts.files import read_manifest
from ingest.contracts.verdict import Decision, Verdict

pytestmark = pytest.mark.integration

WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade", "kelp", "lotus")


class Gateway(ThreadingHTTPServer):
    """Answers by version: `good` and `base` with sentences of different worth, `parrot` with the question."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.seen: list[tuple[dict[str, str], dict]] = []
        self.flaky: set[str] = set()
        self.refuse: int | None = None
        self.mislabel = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Gateway

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {k.lower(): v for k, v in self.headers.items()}
        version, question = headers["x-everloop-version"], body["messages"][-1]["content"]
        with self.server.lock:
            number = len(self.server.seen)
            self.server.seen.append((headers, body))
            first = question in self.server.flaky
            self.server.flaky.discard(question)
        if self.server.refuse:
            return self.answer(self.server.refuse, {"error": {"message": "no"}}, version, number)
        if first:
            return self.answer(503, {"error": {"message": "later"}}, version, number)
        text = {
            "parrot": question.rstrip("?") + ".",
            "good": f"{WORDS[number % 12]} fills a good <b>{WORDS[(number + 5) % 12]}</b> today.",
            "base": f"{WORDS[number % 12]} fills {WORDS[(number + 5) % 12]} or less.",
        }[version]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self.answer(200, {"id": "chatcmpl-x", "choices": [choice]}, version, number)

    def answer(self, status: int, body: dict, version: str, number: int) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("x-everloop-version", "other" if self.server.mislabel else version)
        self.send_header("x-everloop-turn-id", f"chatcmpl-{number}")
        self.end_headers()
        self.wfile.write(data)


def simulated_users(question: dict, answer: str, finish: str) -> float:
    """The target here: likes `good`, and loves to hear its own words (the gamed reward)."""
    assert question["meta"]["kind"] == "test"
    base = 0.9 if answer.startswith(question["question"][:10]) else 0.7 if "good" in answer else 0.4
    return base + len(answer) % 7 / 100


def broken_users(question: dict, answer: str, finish: str) -> float:
    return 1.5


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def settings(tmp_path: Path) -> EvaluationSettings:
    suite = tmp_path / "suite.jsonl"
    lines = [
        {"id": i, "question": f"What does {w} <i>mean</i>?", "system": "Be short.", "meta": {"kind": "test"}}
        for i, w in enumerate(WORDS)
    ]
    suite.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return EvaluationSettings(
        suite=suite, target=f"{__name__}:simulated_users", sampling=SamplingSettings(answers=3, retries=1), parts=1
    )


def run(
    settings: EvaluationSettings, gateway: Gateway, output: Path, challenger: str, run_id: str = "run-1", look: int = 1
) -> Verdict:
    return evaluate(
        settings=settings,
        policy="assistant",
        run_id=run_id,
        challenger=challenger,
        champion="base",
        gateway=gateway.url,
        key="el-secret",
        look=look,
        holds=0,
        output=output,
    )


def test_a_better_challenger_is_promoted_with_its_evidence(settings, gateway, tmp_path) -> None:
    output = tmp_path / "checkpoints" / "good"
    verdict = run(settings, gateway, output, "good")
    assert verdict.decision is Decision.PROMOTE
    assert verdict.difference == pytest.approx(0.3, abs=0.05)
    assert (verdict.questions, verdict.samples) == (12, 72)
    assert all(g.passed for g in verdict.guards)
    assert read_manifest(output, Verdict, "verdict.json") == verdict
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    assert all(len(line["champion"]) == len(line["challenger"]) == 3 for line in lines)
    turns = {a["turn_id"] for line in lines for side in ("champion", "challenger") for a in line[side]}
    assert len(turns) == 72
    report = (output / "report.html").read_text()
    assert report.count("data:image/png;base64,") == 3
    assert "<b>" not in report
    assert "&lt;b&gt;" in report
    assert "<i>" not in report


def test_what_is_asked_of_the_gateway(settings, gateway, tmp_path) -> None:
    run(settings, gateway, tmp_path / "good", "good")
    for headers, body in gateway.seen:
        challenger = headers["x-everloop-version"] == "good"
        assert headers.get("x-everloop-arm") == ("evaluation" if challenger else None)
        assert headers["x-everloop-train"] == "no"
        assert headers["authorization"] == "Bearer el-secret"
        assert body["model"] == "assistant"
        assert (body["temperature"], body["max_tokens"]) == (1.0, 32)
    sessions = {headers["x-everloop-session"]: body["messages"][-1]["content"] for headers, body in gateway.seen}
    assert len(sessions) == len(set(sessions.values())), "a session for each question, whoever answers it"


def test_called_again_it_returns_what_it_concluded(settings, gateway, tmp_path) -> None:
    first = run(settings, gateway, tmp_path / "good", "good")
    asked = len(gateway.seen)
    assert run(settings, gateway, tmp_path / "good", "good") == first
    assert len(gateway.seen) == asked
    with pytest.raises(EvaluationError, match="holds the verdict of run run-1"):
        run(settings, gateway, tmp_path / "good", "good", run_id="run-2")


def test_a_parrot_that_the_proxy_loves_is_rejected(settings, gateway, tmp_path) -> None:
    verdict = run(settings, gateway, tmp_path / "parrot", "parrot")
    assert verdict.low > 0
    assert verdict.decision is Decision.REJECT
    assert any("guard echo failed" in reason for reason in verdict.reasons)


def test_the_anchor_is_the_first_champion_and_stays(settings, gateway, tmp_path) -> None:
    run(settings, gateway, tmp_path / "one", "good")
    (anchor,) = tmp_path.glob("anchor-*.json")
    before = anchor.read_bytes()
    assert json.loads(before)["version"] == "base"
    verdict = run(settings, gateway, tmp_path / "two", "parrot")
    assert anchor.read_bytes() == before
    assert {g.name for g in verdict.guards if not g.passed} >= {"echo", "echo@anchor"}


def test_the_hold_out_rotates_and_each_part_has_its_anchor(settings, gateway, tmp_path) -> None:
    half = settings.model_copy(update={"parts": 2, "min_questions": 6})
    asked = []
    for look in (1, 2, 3):
        del gateway.seen[:]
        verdict = run(half, gateway, tmp_path / str(look), "good", f"run-{look}", look)
        assert (verdict.look, verdict.questions, verdict.confidence) == (look, 6, 1 - 0.1 / (look * (look + 1)))
        asked.append({body["messages"][-1]["content"] for _, body in gateway.seen})
    assert not asked[0] & asked[1], "no question decides twice in a row"
    assert len(asked[0] | asked[1]) == 12
    assert asked[2] == asked[0]
    assert len(list(tmp_path.glob("anchor-*.json"))) == 2
    with pytest.raises(SuiteError, match="asks 6 questions, min_questions is 8"):
        run(half.model_copy(update={"min_questions": 8}), gateway, tmp_path / "few", "good")


def test_without_a_target_the_best_is_canary(settings, gateway, tmp_path) -> None:
    verdict = run(settings.model_copy(update={"target": None}), gateway, tmp_path / "good", "good")
    assert verdict.decision is Decision.CANARY
    assert (tmp_path / "good" / "report.html").exists()


def test_a_failure_that_passes_costs_no_sample(settings, gateway, tmp_path) -> None:
    gateway.flaky = {"What does amber <i>mean</i>?"}
    assert run(settings, gateway, tmp_path / "good", "good").samples == 72
    assert len(gateway.seen) == 73


@pytest.mark.parametrize(("status", "tries"), [(503, 2), (409, 2), (401, 1)])
def test_a_failure_that_stays_is_an_error_and_leaves_no_verdict(settings, gateway, tmp_path, status, tries) -> None:
    gateway.refuse = status
    one = settings.model_copy(update={"sampling": SamplingSettings(answers=1, retries=1, concurrency=1)})
    with pytest.raises(SamplingError, match=str(status)) as failure:
        run(one, gateway, tmp_path / "good", "good")
    assert "el-secret" not in str(failure.value)
    assert sum(body["messages"][-1]["content"] == "What does amber <i>mean</i>?" for _, body in gateway.seen) == tries
    assert not (tmp_path / "good").exists()


def test_an_answer_from_another_version_is_an_error(settings, gateway, tmp_path) -> None:
    gateway.mislabel = True
    with pytest.raises(SamplingError, match="version other answered"):
        run(settings, gateway, tmp_path / "good", "good")


def test_a_gateway_that_is_away_is_an_error(settings, gateway, tmp_path) -> None:
    gateway.shutdown()
    gateway.server_close()
    with pytest.raises(SamplingError, match="no answer after 2 tries"):
        run(settings, gateway, tmp_path / "good", "good")


def test_targets_and_suites_that_are_not_usable(settings, gateway, tmp_path) -> None:
    with pytest.raises(SuiteError, match=r"gave 1\.5"):
        run(settings.model_copy(update={"target": f"{__name__}:broken_users"}), gateway, tmp_path / "a", "good")
    with pytest.raises(SuiteError, match="min_questions is 40"):
        run(settings.model_copy(update={"min_questions": 40}), gateway, tmp_path / "b", "good")
