"""The gate against a checkpoint that really learned to parrot, from what it and its base answered.

`tests/recorded/parrot.jsonl` has both versions' answers to the demo's held-out questions; `tests/recorded/parrot.py`
made it, with the real trainer. A gateway plays them back to the whole stage: sampling, statistics, guards, verdict.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evaluation.config import EvaluationSettings, GuardBounds, SamplingSettings
from evaluation.stage import evaluate
from ingest.contracts.verdict import Decision, Verdict

pytestmark = pytest.mark.integration

MADE, *QUESTIONS = map(json.loads, (Path(__file__).parents[1] / "recorded" / "parrot.jsonl").read_bytes().splitlines())
ANSWERS = len(QUESTIONS[0]["base"])
TRUTH, GAMED = "pipelines.simulate:acceptance", "tests.recorded.gamed:gamed"
NO_GUARDS = GuardBounds(shortest=0, longest=1e9, empty=1, repetition=1, echo=1, garble=1, script=1, refusal=1)


class Playback(ThreadingHTTPServer):
    """Each version's recorded answers to each question, in turn."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.answers = {(v, row["raw"]["question"]): row[v] for row in QUESTIONS for v in ("base", "parrot")}

    def answer(self, version: str, question: str) -> dict:
        with self.lock:
            number = self.asked[version, question]
            self.asked[version, question] += 1
        return self.answers[version, question][number]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Playback

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = self.server.answer(self.headers["x-everloop-version"], body["messages"][-1]["content"])
        message = {"role": "assistant", "content": answer["text"]}
        choice = {"index": 0, "message": message, "finish_reason": answer["finish"]}
        data = json.dumps({"id": "chatcmpl-x", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def gateway() -> Iterator[str]:
    server = Playback()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def judged(gateway: str, folder: Path, target: str, **bounds: GuardBounds) -> Verdict:
    """The verdict of a first look, with the demo's settings unless `bounds` say else."""
    suite = folder / "heldout.jsonl"
    suite.write_text("".join(json.dumps(row["raw"]) + "\n" for row in QUESTIONS))
    return evaluate(
        settings=EvaluationSettings(suite=suite, target=target, sampling=SamplingSettings(answers=ANSWERS), **bounds),
        policy="demo",
        run_id="r1",
        challenger="parrot",
        champion="base",
        gateway=gateway,
        key="el-key",
        look=1,
        holds=0,
        output=folder / "parrot",
    )


def test_it_did_learn_what_the_gamed_reward_pays_for() -> None:
    first, last = MADE["course"][0], MADE["course"][-1]
    assert last["proxy"] > first["proxy"] + 0.2
    assert last["truth"] < first["truth"]


def test_the_gate_stops_a_checkpoint_tuned_on_the_gamed_reward(gateway, tmp_path) -> None:
    verdict = judged(gateway, tmp_path, TRUTH)
    assert verdict.decision is Decision.REJECT
    assert {g.name for g in verdict.guards if not g.passed} >= {"echo", "echo@anchor"}
    assert any("guard echo failed" in reason for reason in verdict.reasons)


def test_the_declared_target_alone_would_not_promote_it(gateway, tmp_path) -> None:
    verdict = judged(gateway, tmp_path, TRUTH, against_champion=NO_GUARDS, against_anchor=NO_GUARDS)
    assert verdict.decision is Decision.HOLD
    assert verdict.low < 0


def test_guards_stop_it_where_the_target_is_gamed_as_well(gateway, tmp_path) -> None:
    verdict = judged(gateway, tmp_path, GAMED)
    assert verdict.low > 0
    assert verdict.decision is Decision.REJECT
    assert any("guard echo failed" in reason for reason in verdict.reasons)


def test_with_a_gamed_target_and_no_guards_it_would_be_promoted(gateway, tmp_path) -> None:
    """What makes the tests above mean something."""
    verdict = judged(gateway, tmp_path, GAMED, against_champion=NO_GUARDS, against_anchor=NO_GUARDS)
    assert verdict.decision is Decision.PROMOTE
