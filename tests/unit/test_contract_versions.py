"""Contracts over time: what any version wrote is read, what a newer one wrote is refused and kept, and no contract
changes without a recording."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from docs.generate import SCHEMAS
from ingest import rows
from ingest.contracts import events
from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.events import decode_event, encode_event
from ingest.contracts.files import read_manifest
from ingest.contracts.tap import TapRecord, decode_tap, encode_tap
from ingest.contracts.turn import Turn
from ingest.contracts.versions import current
from promotion.rollout import read as read_rollout
from serving.gateway.stream import decode_record
from tests.log_events import accept, forget, turn
from tests.recorded import make_contracts
from tests.recorded.make_contracts import CASES, ROOT, folder, plain, wire

BY_NAME = {kind.__name__.lower(): kind for kind in CASES}
RECORDINGS = [path for path in sorted(ROOT.glob("v*/*/*")) if not path.name.endswith(".expected.json")]


def differences(expected: Any, found: Any, at: str = "") -> list[str]:
    """Where a reading lacks what was expected. It may have more fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key, value in expected.items()
            for line in (differences(value, found[key], f"{at}.{key}") if key in found else [f"{at}.{key} is gone"])
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{at}[{i}]")]
    return [] if expected == found else [f"{at}: {expected!r} was read then, {found!r} now"]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recordings_of_every_version_are_read(path: Path) -> None:
    kind = BY_NAME[path.parent.name.partition("-")[0]]
    expected = msgspec.json.decode(path.with_suffix(".expected.json").read_bytes())
    found = wire(kind).read(path)
    assert type(found) is kind
    assert not differences(expected, plain(found))


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_a_contract_does_not_change_without_a_recording(kind: type) -> None:
    place = folder(kind)
    assert place.exists(), (
        f"the fields of {kind.__name__} have changed. Raise its `schema` where older code would misread it, then "
        "record it: python -m tests.recorded.make_contracts. It adds a recording, and the older ones stay."
    )
    recorded = {path.stem for path in place.iterdir() if not path.name.endswith(".expected.json")}
    assert recorded == set(CASES[kind]), f"{place}: other cases than in make_contracts; remove the folder if it is new"


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_every_field_is_in_a_recording(kind: type) -> None:
    cases = CASES[kind].values()
    for field in msgspec.structs.fields(kind):
        if field.name != "schema":
            assert any(getattr(case, field.name) != field.default for case in cases), f"give {field.name} a value"


def test_every_published_contract_is_recorded() -> None:
    assert {kind for kind in SCHEMAS if "schema" in kind.__struct_fields__} <= set(CASES)


def test_a_recording_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_contracts, "ROOT", tmp_path)
    make_contracts.main()
    [place] = tmp_path.glob("v1/turn-*")
    kept = place / "full.msgpack"
    kept.write_bytes(b"of another time")
    shutil.rmtree(next(tmp_path.glob("v1/feedback-*")))
    make_contracts.main()
    assert kept.read_bytes() == b"of another time"
    assert list(tmp_path.glob("v1/feedback-*/full.msgpack"))


@pytest.mark.parametrize("event", [turn("t"), accept("f", "t"), forget("s")], ids=lambda event: type(event).__name__)
def test_an_event_says_its_version_on_the_wire_and_a_newer_one_is_refused(event: Any) -> None:
    known = current(type(event))
    fields = msgspec.msgpack.decode(encode_event(event))
    assert fields["schema"] == known
    newer = fields | {"schema": known + 1}
    for payload in (newer, newer | {"kind": "of tomorrow", "finish": "of tomorrow", "digest": None}):
        with pytest.raises(ContractError, match=f"a newer version of everloop wrote it.* schema {known + 1}"):
            decode_event(msgspec.msgpack.encode(payload))


def test_code_that_reads_a_newer_version_tries_the_rejects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def reader() -> str:
        spec = importlib.util.find_spec("ingest.rows")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.READER

    assert reader() == rows.READER
    monkeypatch.setattr(events, "VERSIONS", events.VERSIONS | {"turn": events.VERSIONS["turn"] + 1})
    assert reader() != rows.READER


def test_what_is_nested_without_end_is_no_event() -> None:
    nested = b"\x82\xa4type\xa4turn\xa3new" + b"\x91" * 100_000 + b"\x01"
    for payload in (nested, b"\x81\xa1a" * 100_000 + b"\x01"):
        with pytest.raises(ContractError, match="not an event"):
            decode_event(payload)


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    for kind, name in ((CheckpointManifest, "manifest.json"), (make_contracts.Rollout, "rollout.json")):
        fields = msgspec.to_builtins(next(iter(CASES[kind].values())))
        newer = fields | {"schema": current(kind) + 1, "kind": 7, "state": "of tomorrow"}
        (tmp_path / name).write_bytes(msgspec.json.encode(newer))
        with pytest.raises(ContractError, match=rf"a newer version of everloop wrote it: .*{name} of schema 2"):
            read_manifest(tmp_path, kind, name)
    with pytest.raises(ContractError, match="a newer version"):
        read_rollout(tmp_path)


def test_a_newer_tap_record_is_no_record_for_the_gateway() -> None:
    newer = encode_tap(TapRecord(engine_build="of tomorrow", schema=current(TapRecord) + 1))
    with pytest.raises(ContractError, match="a newer version"):
        decode_tap(newer)
    assert decode_record(newer) is None


def test_a_field_that_older_code_does_not_know_is_passed_over() -> None:
    fields = msgspec.msgpack.decode(encode_event(turn("t")))
    assert decode_event(msgspec.msgpack.encode(fields | {"of_tomorrow": [1]})) == turn("t")
    assert isinstance(decode_event(msgspec.msgpack.encode(fields)), Turn)
