"""The installation's secrets: made once, kept in `run/secrets.json` for its owner only, given by environment.

Invariant: no secret is in the supervisor's configuration, on a command line or in a log.
"""

import os
import secrets
from pathlib import Path

import msgspec


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and keys. Nothing prints one: its `repr` is its name."""

    control_token: str
    hash_secret: str
    """Hex; the key of the keyed hashes of people and conversations."""
    engine_token: str
    webhook_secret: str
    evaluation_key: str = ""
    """An API key with the role `evaluation`; empty until control made it."""
    evaluation_key_id: str = ""

    def __repr__(self) -> str:
        return "Secrets(…)"

    def with_evaluation_key(self, key: str, key_id: str) -> "Secrets":
        """The same, with the key that control made."""
        return msgspec.structs.replace(self, evaluation_key=key, evaluation_key_id=key_id)

    def environment(self) -> dict[str, str]:
        """The variables that the processes of the stack read."""
        return {
            "EVERLOOP_CONTROL_TOKEN": self.control_token,
            "EVERLOOP_HASH_SECRET": self.hash_secret,
            "EVERLOOP_ENGINE_TOKEN": self.engine_token,
            "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": self.webhook_secret,
        }


def load_or_create(path: Path) -> Secrets:
    """The secrets at `path`; new ones where there are none yet."""
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Secrets)
    import base64

    made = Secrets(
        control_token=secrets.token_urlsafe(32),
        hash_secret=secrets.token_hex(32),
        engine_token=secrets.token_urlsafe(32),
        webhook_secret=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    )
    save(path, made)
    return made


def save(path: Path, values: Secrets) -> None:
    """Replaces the file at once; it is never readable by others."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(msgspec.json.encode(values))
        f.flush()
        os.fsync(f.fileno())
    os.replace(partial, path)
