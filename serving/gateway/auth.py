"""Who is calling, and how much more they may.

A key is known by its SHA-256; the key itself is nowhere. A key's limits hold over all gateways together, without a
shared counter: each worker process enforces its share, the limit divided by the workers that control says live.

- `requests_per_minute`: a share may be a fraction; the workers' shares add up to the limit exactly, over time. A worker
  lets at least one request through at once, so a burst may exceed a limit that is smaller than the number of workers.
- `concurrency`: shares are rounded up, so that a small limit leaves no worker without any: together they may exceed the
  limit by less than one a worker.
- A caller whose connections all end at one worker gets that worker's share only.
- While control is away, or has just started, shares stay as they are.
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


def recheck(keys: Mapping[str, Key], key: Key) -> None:
    """Refuses a request that has waited, if its `key` was revoked or lost a role in the meantime.

    `keys` are the keys in force now. Raises `Unauthorized`.
    """
    now = keys.get(key.digest)
    if now is not key and (now is None or not set(key.roles) <= set(now.roles)):
        raise Unauthorized("This API key was revoked or lost a role while the request waited.")


class Limits:
    """Requests per minute (token bucket) and concurrency, by key. `clock` gives monotonic seconds.

    `workers` tells how many processes share each limit now, this one included.
    """

    def __init__(self, clock: Callable[[], float], workers: Callable[[], int]) -> None:
        self._clock = clock
        self._workers = workers
        self._buckets: dict[str, tuple[float, float]] = {}
        self._running: dict[str, int] = {}

    @contextmanager
    def hold(self, key: Key) -> Iterator[None]:
        """One request of `key`, from now to the end of the block. Raises `RateLimited`."""
        running = self._running.get(key.key_id, 0)
        if key.concurrency is not None and running >= ceil(key.concurrency / self._workers()):
            raise RateLimited(f"This key may have {key.concurrency} requests in progress: wait for one to end.")
        if key.requests_per_minute is not None:
            self._draw(key.key_id, key.requests_per_minute / self._workers())
        self._running[key.key_id] = running + 1
        try:
            yield
        finally:
            self._running[key.key_id] -= 1
            if not self._running[key.key_id]:
                del self._running[key.key_id]

    def _draw(self, key_id: str, per_minute: float) -> None:
        now, most = self._clock(), max(1.0, per_minute)
        tokens, since = self._buckets.get(key_id, (most, now))
        tokens = min(most, tokens + (now - since) * per_minute / 60)
        if tokens < 1:
            self._buckets[key_id] = (tokens, now)
            raise RateLimited(
                "This key is above its requests per minute.", max(1, ceil((1 - tokens) * 60 / per_minute))
            )
        self._buckets[key_id] = (tokens - 1, now)
