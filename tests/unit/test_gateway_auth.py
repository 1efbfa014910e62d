"""Keys, roles and limits."""

import msgspec
import pytest

from ingest.contracts.fleet import Key, Role
from serving.gateway.auth import Limits, authenticate, digest_key, recheck
from serving.gateway.errors import Forbidden, RateLimited, Unauthorized


def key(**more) -> Key:
    return Key(key_id="k", name="n", digest=digest_key("el-secret"), roles=(Role.INFERENCE,), created_at=0.0, **more)


def keys(**more) -> dict[str, Key]:
    return {digest_key("el-secret"): key(**more)}


def test_a_key_is_known_by_its_digest() -> None:
    assert authenticate(keys(), "Bearer el-secret", Role.INFERENCE).key_id == "k"
    assert authenticate(keys(), "bearer  el-secret ", Role.ADMIN, Role.INFERENCE).key_id == "k"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic el-secret", "Bearer el-other", "Bearer é\x80"]
)
def test_anything_else_is_unauthorized(header: str | None) -> None:
    with pytest.raises(Unauthorized) as refused:
        authenticate(keys(), header, Role.INFERENCE)
    assert "el-secret" not in refused.value.message
    assert "el-other" not in refused.value.message


def test_revoked_keys_and_missing_roles_are_refused() -> None:
    with pytest.raises(Unauthorized):
        authenticate(keys(revoked_at=1.0), "Bearer el-secret", Role.INFERENCE)
    with pytest.raises(Forbidden):
        authenticate(keys(), "Bearer el-secret", Role.FEEDBACK)


def test_a_key_is_looked_at_again_after_a_wait() -> None:
    held = key()
    recheck({held.digest: held}, held)
    recheck(keys(requests_per_minute=1), held)
    lesser = msgspec.structs.replace(held, roles=(Role.FEEDBACK,))
    for now in ({}, {held.digest: lesser}):
        with pytest.raises(Unauthorized):
            recheck(now, held)


def test_concurrency_is_counted_while_it_lasts() -> None:
    limits, limited = Limits(lambda: 0.0, lambda: 1), key(concurrency=2)
    with limits.hold(limited), limits.hold(limited), pytest.raises(RateLimited), limits.hold(limited):
        pass
    with limits.hold(limited), limits.hold(limited):
        pass


def test_requests_per_minute_refill_and_tell_when_to_retry() -> None:
    now = 0.0
    limits, limited = Limits(lambda: now, lambda: 1), key(requests_per_minute=6)
    for _ in range(6):
        with limits.hold(limited):
            pass
    with pytest.raises(RateLimited) as refused, limits.hold(limited):
        pass
    assert refused.value.retry_after == 10
    now = 10.0
    with limits.hold(limited):
        pass
    with pytest.raises(RateLimited), limits.hold(limited):
        pass


def test_workers_share_a_limit_as_they_come_and_go() -> None:
    workers, now = 4, 0.0
    limits, limited = Limits(lambda: now, lambda: workers), key(requests_per_minute=8, concurrency=100)
    with limits.hold(limited), limits.hold(limited), pytest.raises(RateLimited), limits.hold(limited):
        pass
    workers, now = 1, 60.0
    for _ in range(8):
        with limits.hold(limited):
            pass
    with pytest.raises(RateLimited), limits.hold(limited):
        pass
    limited = key(concurrency=3)
    workers = 2
    with limits.hold(limited), limits.hold(limited), pytest.raises(RateLimited), limits.hold(limited):
        pass
    workers = 3
    with limits.hold(limited), pytest.raises(RateLimited), limits.hold(limited):
        pass


def test_shares_below_one_add_up_to_the_limit() -> None:
    """A limit of 6 a minute over 12 workers: half a request each, that is one in two minutes."""
    now, taken = 0.0, 0
    workers, limited = [Limits(lambda: now, lambda: 12) for _ in range(12)], key(requests_per_minute=6)

    def let_through() -> int:
        taken = 0
        for limits in workers:
            try:
                with limits.hold(limited):
                    taken += 1
            except RateLimited:
                pass
        return taken

    assert let_through() == 12
    for second in range(1, 601):
        now = float(second)
        taken += let_through()
    assert 48 <= taken <= 60  # the clock of this test ticks in whole seconds
