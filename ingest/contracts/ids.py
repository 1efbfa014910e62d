"""How identities are minted, and keyed hashes of people and conversations.

A turn's id has the shape that the caller's wire format expects, is unguessable, and is never one that a
caller chose. People and conversations are known only by keyed hashes (BLAKE2b under the deployment's
secret), so that nothing on the log names a person, and nobody without the secret can test a guess.
"""

import hashlib
import re
import secrets

_TURN_PREFIX = {"chat": "chatcmpl-", "completions": "cmpl-", "responses": "resp_", "messages": "msg_"}

ID = re.compile(rb"(?:" + "|".join(_TURN_PREFIX.values()).encode() + rb")?[0-9a-f]{32}")
"""The id of a turn, or a keyed hash, in a text."""


def new_turn_id(dialect: str) -> str:
    """A fresh turn id of 128 random bits, in the shape of `dialect`."""
    return _TURN_PREFIX[dialect] + secrets.token_hex(16)


def new_id(prefix: str) -> str:
    """A fresh id of 64 random bits: `prefix-…`, for keys, feedback, engines and runs."""
    return f"{prefix}-{secrets.token_hex(8)}"


def keyed_hash(secret: bytes, kind: str, value: str | bytes) -> str:
    """32 hex digits naming `value` among values of one `kind` ("subject", "session", …)."""
    data = value.encode() if isinstance(value, str) else value
    return hashlib.blake2b(data, key=secret[:64], person=kind.encode()[:16], digest_size=16).hexdigest()
