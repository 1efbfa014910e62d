"""Credentials do not land where that is asked for: found in whatever a turn says, and nothing else is."""

import time
from pathlib import Path

import msgspec
import pytest

from ingest import credentials
from ingest.config import LakeSettings, LogSettings
from ingest.contracts.events import Record, encode_event
from ingest.contracts.feedback import Feedback, Kind
from ingest.credentials import REASON, without_credentials
from ingest.lake import FEEDBACK, TURNS, read
from ingest.land import land
from ingest.rows import Erased, sort
from ingest.spool import Spool
from tests.log_events import accept, turn

# Put together here, so that no scanner takes this file for a leak.
TOKENS = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + "wWPw5k4aXcaT4fNP0UcnZwJUVFk6LO0pINUx",
    "xoxb-" + "34532454-e039d02840a0b9379c",
    "-----BEGIN " + "RSA PRIVATE KEY-----",
    "https://user:" + "pass1word@example.com/x",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
]


def said(text: str, **fields: object) -> str:
    return msgspec.json.encode({"messages": [{"role": "user", "content": text}]} | fields).decode()


@pytest.mark.parametrize("token", TOKENS)
def test_a_turn_with_a_credential_lands_without_texts_and_arrays(token: str) -> None:
    arguments = msgspec.json.encode({"command": f"export KEY=\n{token}"}).decode()
    call = msgspec.json.encode({"tool_calls": [{"function": {"name": "shell", "arguments": arguments}}]}).decode()
    for fields in (
        {"request": said(f"my key:\n{token}")},
        {"request": said("x " * 5000 + f"{token}")},
        {"request": said("hi", metadata={token: 1})},
        {"answer": call},
        {"answer": f"no JSON: {token}"},
    ):
        clean = without_credentials(turn("t", **fields))
        assert (clean.request, clean.answer, clean.prompt_ids, clean.output_ids, clean.logprobs) == (
            "",
            "",
            b"",
            b"",
            b"",
        )
        assert (clean.trainable, clean.untrainable_reason, clean.weight_versions) == (False, REASON, ())
    out = turn("t", answer=call, trainable=False, untrainable_reason="opted out")
    assert without_credentials(out).untrainable_reason == "opted out"
    edit = Feedback(
        feedback_id="f",
        target="turn",
        target_id="t",
        kind=Kind.EDIT,
        text=token,
        key_id="k",
        occurred_at=1,
        received_at=1,
    )
    assert without_credentials(edit).text is None


def test_prose_and_code_stay_as_they_are() -> None:
    prose = (
        "The password is on the desk. See https://example.com/a?key=secret, mail a@b.org, sha1 "
        + "0123456789abcdef" * 3
    )
    code = 'api_key = os.environ["API_KEY"]\nassert token != "changeme"  # AKIA is the prefix'
    whole = turn("t", request=said(prose), answer=said(code))
    assert without_credentials(whole) is whole
    assert without_credentials(accept("f", "t")) == accept("f", "t")


def test_what_would_take_too_long_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, detect-secrets takes seven minutes for this."""
    monkeypatch.setattr(credentials, "SECONDS", 0.2)
    began = time.monotonic()
    assert without_credentials(turn("t", request=said("sk-" * 1_000_000))).untrainable_reason == REASON
    assert time.monotonic() - began < 60


def test_landing_screens_where_that_is_asked_for(tmp_path: Path) -> None:
    events = [turn("bad", request=said(TOKENS[0])), turn("good", request=said("hello")), accept("f", "bad")]
    assert sort([Record("s", 1, encode_event(events[0]))], Erased(), 0.0).tables[TURNS]["request"][0].as_py()
    for asked in (False, True):
        root = tmp_path / str(asked)
        spool = Spool.open(root / "spool")
        spool.append_sync(events)
        spool.close()
        log = LogSettings(kind="embedded")
        land(log=log, spool=root / "spool", lake=root / "lake", settings=LakeSettings(redact_credentials=asked))
        rows = {row["turn_id"]: row for row in read(root / "lake", TURNS).to_table().to_pylist()}
        assert (rows["bad"]["request"] == "", rows["bad"]["trainable"]) == (asked, not asked)
        assert "hello" in rows["good"]["request"]
        assert read(root / "lake", FEEDBACK).count_rows() == 1
