"""Attribution written so that one can see that it is right: one turn at a time, no SQL, no speed.

The rules are the docstring of `ingest.attribution`; the join is compared with this.
"""

from typing import Any

from ingest.config import AttributionSettings, RewardSettings

Row = dict[str, Any]


def attribute_slowly(
    turns: list[Row],
    feedback: list[Row],
    erased: set[tuple[str, str]],
    used: set[tuple[str, int]],
    settings: AttributionSettings,
    rewards: RewardSettings,
    cut: float,
    watermark: float,
) -> dict[tuple[str, int], tuple[str, int, float | None, bool]]:
    """(turn id, sample) → state, feedback revision, reward, ready. For turns of one version and one policy."""
    turns = [t for t in turns if t["finished_at"] <= cut]
    heard = _first_of_each([f for f in feedback if f["received_at"] <= cut and ("subject", f["subject"]) not in erased])
    out = {}
    for turn in turns:
        signals = [f for f in heard if _counts(f, turn, turns, settings, rewards)]
        current = _current(signals)
        reward = None
        if current:
            reward = max(-rewards.limit, min(rewards.limit, sum(_number(f, rewards) for f in current)))
        state = _state(turn, turns, signals, erased, settings, cut, watermark)
        key = turn["turn_id"], turn["sample"]
        ready = (
            state == "settled"
            and turn["trainable"]
            and key not in used
            and turn["started_at"] >= cut - settings.fresh_seconds
        )
        out[key] = state, len(signals), reward, ready
    return out


def _place(f: Row) -> tuple:
    return f["received_at"], f["spool_id"], f["sequence"]


def _first_of_each(feedback: list[Row]) -> list[Row]:
    first: dict[tuple, Row] = {}
    for f in sorted(feedback, key=_place):
        first.setdefault((f["key_id"], f["feedback_id"]), f)
    return list(first.values())


def _counts(f: Row, turn: Row, turns: list[Row], settings: AttributionSettings, rewards: RewardSettings) -> bool:
    if f["target"] == "turn":
        aimed = f["target_id"] == turn["turn_id"] and f["sample"] == turn["sample"]
    elif f["target"] == "session":
        aimed = f["target_id"] == turn["session_id"] and turn["started_at"] <= f["received_at"]
    else:
        meant = [t for t in turns if (t["turn_id"], t["sample"]) == (f["target_id"], f["sample"])]
        aimed = any(_together(t, turn) for t in meant) and turn["started_at"] <= f["received_at"]
    own = f["key_id"] == turn["key_id"] and (not f["subject"] or not turn["subject"] or f["subject"] == turn["subject"])
    allowed = own or f["key_id"] in settings.trusted_keys
    in_time = f["received_at"] <= turn["finished_at"] + settings.window_seconds
    return aimed and allowed and in_time and _number(f, rewards) is not None


def _together(one: Row, other: Row) -> bool:
    """Whether both are of one session; of one that named itself, whether one went on from the other."""
    if any(one[name] != other[name] for name in ("session_id", "key_id", "subject")):
        return False
    if one["session_id"] not in one["prefix_hashes"] or _ids(one) == _ids(other):
        return True
    return any(a["answer"] and a["prefix_hashes"][-1] in b["prefix_hashes"] for a, b in ((one, other), (other, one)))


def _ids(turn: Row) -> tuple[str, int]:
    return turn["turn_id"], turn["sample"]


def _current(signals: list[Row]) -> list[Row]:
    last: dict[tuple, Row] = {}
    for f in sorted(signals, key=lambda f: (f["received_at"], f["occurred_at"], f["spool_id"], f["sequence"])):
        question = "verdict" if f["kind"] in ("accept", "reject") else f["kind"]
        last[f["target"] == "turn", f["source"], question] = f
    return list(last.values())


def _number(f: Row, rewards: RewardSettings) -> float | None:
    fixed = {"accept": rewards.accept, "reject": rewards.reject, "abstain": rewards.abstain}
    scales = {"score": rewards.score_scale, "outcome": rewards.outcome_scale}
    if f["kind"] in fixed:
        return fixed[f["kind"]]
    return f["value"] * scales[f["kind"]] if f["kind"] in scales else None


def _state(
    turn: Row,
    turns: list[Row],
    signals: list[Row],
    erased: set[tuple[str, str]],
    settings: AttributionSettings,
    cut: float,
    watermark: float,
) -> str:
    if turn["arm"] == "evaluation" or turn["finish"] in ("abort", "error", "engine_lost"):
        return "censored"
    if turn["untrainable_reason"] == "opted out":
        return "censored"
    if ("subject", turn["subject"]) in erased or ("session", turn["session_id"]) in erased:
        return "censored"
    same = ("session_id", "key_id", "subject", "prompt_ids")
    retried = any(
        all(other[name] == turn[name] for name in same)
        and other["arm"] != "evaluation"
        and turn["finished_at"] < other["started_at"] <= turn["finished_at"] + settings.retry_seconds
        for other in turns
    )
    if retried and not any(f["target"] == "turn" for f in signals):
        return "superseded"
    if signals:
        return "settled" if max(f["received_at"] for f in signals) + settings.settle_seconds <= cut else "open"
    return "silent" if turn["finished_at"] + settings.window_seconds <= min(cut, watermark) else "open"
