"""Who is calling, and how much more they may.

A key is known by its SHA-256; the key itself is nowhere. Limits count in this process: a key's limits are
divided by the gateway's workers, rounded up, so that `requests_per_minute` holds per gateway; behind
several gateways it holds for each of them.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil

from ingest.contracts.fleet import Key, Role
from serving.gateway.errors import Forbidden, RateLimited, Unauthorized


def digest_key(secret: str) -> str:
    """What control stores of an API key: its SHA-256, in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def authenticate(keys: Mapping[str, Key], authorization: str | None, *needed: Role) -> Key:
    """The key in an `Authorization: Bearer` header, if it has one of the roles `needed`.

    `keys` are the keys in force, by digest. Raises `Unauthorized` or `Forbidden`.
    """
    scheme, _, secret = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthorized("No API key: send it as `Authorization: Bearer el-…`.")
    digest = digest_key(secret.strip())
    key = keys.get(digest)
    if key is None or not hmac.compare_digest(key.digest, digest) or key.revoked_at is not None:
        raise Unauthorized("This API key is unknown or was revoked: ask the operator for another.")
    if not any(role in key.roles for role in needed):
        raise Forbidden(f"This API key lacks the role {' or '.join(sorted(needed))}.")
    return key


class Limits:
    """Requests per minute (token bucket) and concurrency, by key. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], workers: int = 1) -> None:
        self._clock = clock
        self._workers = workers
        self._buckets: dict[str, tuple[float, float]] = {}
        self._running: dict[str, int] = {}

    @contextmanager
    def hold(self, key: Key) -> Iterator[None]:
        """One request of `key`, from now to the end of the block. Raises `RateLimited`."""
        running = self._running.get(key.key_id, 0)
        if key.concurrency is not None and running >= ceil(key.concurrency / self._workers):
            raise RateLimited(f"This key may have {key.concurrency} requests in progress: wait for one to end.")
        if key.requests_per_minute is not None:
            self._draw(key.key_id, ceil(key.requests_per_minute / self._workers))
        self._running[key.key_id] = running + 1
        try:
            yield
        finally:
            self._running[key.key_id] -= 1
            if not self._running[key.key_id]:
                del self._running[key.key_id]

    def _draw(self, key_id: str, per_minute: int) -> None:
        now = self._clock()
        tokens, since = self._buckets.get(key_id, (float(per_minute), now))
        tokens = min(float(per_minute), tokens + (now - since) * per_minute / 60)
        if tokens < 1:
            self._buckets[key_id] = (tokens, now)
            raise RateLimited(
                "This key is above its requests per minute.", max(1, ceil((1 - tokens) * 60 / per_minute))
            )
        self._buckets[key_id] = (tokens - 1, now)
