"""Who may serve, and the states on the way: the two tables that promotion rests on."""

from itertools import product
from pathlib import Path

import pytest

from ingest.contracts.errors import ContractError
from ingest.contracts.rollout import TRANSITIONS, RolloutState
from ingest.contracts.verdict import Decision
from promotion import rollout
from promotion.names import checkpoint_of, source_of
from promotion.rules import accept, may_serve
from tests.checkpoint_folders import make_checkpoint, make_verdict

S = RolloutState
PATHS = {
    S.REGISTERED: (S.REGISTERED,),
    S.HELD: (S.REGISTERED, S.HELD),
    S.REJECTED: (S.REGISTERED, S.REJECTED),
    S.ACCEPTED: (S.REGISTERED, S.ACCEPTED),
    S.ROLLING: (S.REGISTERED, S.ACCEPTED, S.ROLLING),
    S.SERVING: (S.REGISTERED, S.ACCEPTED, S.ROLLING, S.SERVING),
    S.RETIRED: (S.REGISTERED, S.ACCEPTED, S.ROLLING, S.RETIRED),
}


def bring(checkpoint: Path, state: RolloutState) -> None:
    for step, to in enumerate(PATHS[state]):
        rollout.move(checkpoint, to, reason="test", now=float(step))


@pytest.mark.parametrize(("decision", "state"), product([None, *Decision], [None, *S]))
def test_without_an_override_only_a_verdict_that_stands_or_past_service_lets_it_serve(
    tmp_path, decision, state
) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    if decision is not None:
        make_verdict(checkpoint, decision)
    if state is not None:
        bring(checkpoint, state)
    stands = decision is Decision.PROMOTE and state is not S.REJECTED
    allowed = stands or state in (S.ROLLING, S.SERVING, S.RETIRED)
    granted = may_serve(checkpoint, None)
    assert granted.allowed is allowed
    assert granted.override is None
    assert may_serve(checkpoint, "  ").allowed is allowed
    forced = may_serve(checkpoint, "ticket 7")
    assert forced.allowed
    assert forced.override == (None if allowed else "ticket 7")


def test_a_base_needs_no_verdict(tmp_path) -> None:
    assert may_serve(make_checkpoint(tmp_path, "base", kind="base"), None).allowed


def test_nothing_overrides_an_incomplete_or_foreign_folder(tmp_path) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    make_verdict(checkpoint, Decision.PROMOTE)
    moved = checkpoint.rename(checkpoint.with_name("c2"))
    assert "holds checkpoint assistant/c1" in may_serve(moved, "please").reason
    (moved / "manifest.json").unlink()
    assert "never completed" in may_serve(moved, "please").reason
    assert not may_serve(tmp_path / "assistant" / "absent", "please").allowed


def test_a_verdict_about_another_checkpoint_does_not_count(tmp_path) -> None:
    good = make_checkpoint(tmp_path, "good")
    make_verdict(good, Decision.PROMOTE)
    bad = make_checkpoint(tmp_path, "bad")
    (bad / "verdict.json").write_bytes((good / "verdict.json").read_bytes())
    assert "is about assistant/good" in may_serve(bad, None).reason
    (bad / "verdict.json").write_text("{")
    assert not may_serve(bad, None).allowed


def test_an_override_is_recorded_and_stays_on_the_record(tmp_path) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    make_verdict(checkpoint, Decision.REJECT)
    bring(checkpoint, S.REJECTED)
    accept(checkpoint, may_serve(checkpoint, "ticket 7"), now=5.0)
    accept(checkpoint, may_serve(checkpoint, "ticket 8"), now=6.0)
    rollout.move(checkpoint, S.ROLLING, reason="", now=7.0)
    standing = rollout.read(checkpoint)
    assert standing is not None
    assert (standing.state, standing.overridden_by) == (S.ROLLING, "ticket 7")


@pytest.mark.parametrize("state", [state for state in S if state is not S.REGISTERED])
def test_only_a_rollout_under_way_is_taken_back_and_then_its_verdict_counts_no_more(tmp_path, state) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    make_verdict(checkpoint, Decision.PROMOTE)
    bring(checkpoint, state)
    before = rollout.read(checkpoint)
    after = rollout.take_back(checkpoint, "e1 refused it", now=9.0)
    if state in (S.ACCEPTED, S.ROLLING):
        assert (after.state, after.reason) == (S.REJECTED, "rolled back: e1 refused it")
        assert may_serve(checkpoint, None).reason == "it was rolled back: e1 refused it"
        assert may_serve(checkpoint, "the disk was full").allowed
    else:
        assert after == before


@pytest.mark.parametrize(("state", "to"), product(S, S))
def test_moves_follow_the_table(tmp_path, state, to) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    bring(checkpoint, state)
    before = rollout.read(checkpoint)
    if to is state:
        assert rollout.move(checkpoint, to, reason="again", now=99.0) == before
    elif to in TRANSITIONS[state]:
        assert rollout.move(checkpoint, to, reason="on", now=99.0) == rollout.read(checkpoint)
    else:
        with pytest.raises(ContractError, match="cannot become"):
            rollout.move(checkpoint, to, reason="no", now=99.0)
        assert rollout.read(checkpoint) == before


def test_the_first_record_is_registered(tmp_path) -> None:
    checkpoint = make_checkpoint(tmp_path, "c1")
    with pytest.raises(ContractError, match="not registered"):
        rollout.move(checkpoint, S.SERVING, reason="", now=0.0)
    assert rollout.read_all(checkpoint.parent) == {}


@pytest.mark.parametrize(
    "source",
    [
        None,
        "",
        "everloop:/other/c1",
        "everloop:/assistant/",
        "everloop:/assistant/..",
        "everloop:/assistant/a/b",
        "/c1",
    ],
)
def test_sources_that_name_no_checkpoint_of_the_policy(source) -> None:
    assert checkpoint_of("assistant", source) is None
    assert checkpoint_of("assistant", source_of("assistant", "c1")) == "c1"
