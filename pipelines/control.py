"""The control process as operators and stages speak to it: a few calls over HTTP, with the standard library."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from pipelines.errors import PipelineError


class Control:
    """Calls to control at `url` with its bearer `token`. `timeout` in seconds."""

    def __init__(self, url: str, token: str, timeout: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._token, self._timeout = token, timeout

    def call(self, method: str, path: str, body: object = None) -> dict:
        """The JSON answer; raises `PipelineError` with control's own sentence, or that it cannot be reached."""
        data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise PipelineError(f"control refused {method} {path} ({error.code}): {_sentence(error.read())}") from None
        except OSError as error:
            raise PipelineError(
                f"control does not answer at {self.url} ({_reason(error)}): is it running? `everloop status` tells"
            ) from None

    def fleet(self) -> dict:
        """Policies, engines (without tokens) and which policies have converged."""
        return self.call("GET", "/v1/fleet")

    def put_policy(
        self, name: str, version: str, path: Path, capture: str, sampling: dict[str, float], redaction: dict
    ) -> dict:
        """Creates the policy or replaces its settings; control keeps a newer desired version."""
        desired = {"version": version, "path": str(path)}
        found = redaction if any(redaction.values()) else None
        body = {"name": name, "desired": desired, "capture": capture, "sampling": sampling, "redaction": found}
        return self.call("PUT", f"/v1/policies/{name}", body)

    def put_under_evaluation(self, policy: str, version: str, path: Path) -> dict:
        """What engines of the role `evaluation` load next."""
        return self.call("PUT", f"/v1/policies/{policy}/under_evaluation", {"version": version, "path": str(path)})

    def swaps(self, policy: str, since: float) -> list[dict]:
        """The swaps of a policy's engines since a time in Unix seconds."""
        return self.call("GET", f"/v1/swaps?policy={policy}&since={since}")["swaps"]

    def create_key(
        self,
        name: str,
        roles: list[str],
        train: bool = True,
        requests_per_minute: int | None = None,
        concurrency: int | None = None,
    ) -> dict:
        """A new key: `key` is shown only here. Limits hold over all gateways together; None: none."""
        limits = {"requests_per_minute": requests_per_minute, "concurrency": concurrency}
        return self.call("POST", "/v1/keys", {"name": name, "roles": roles, "train": train, **limits})

    def list_keys(self) -> list[dict]:
        """All keys, without their digests."""
        return self.call("GET", "/v1/keys")["keys"]

    def revoke_key(self, key_id: str) -> None:
        """The key is refused from the gateways' next poll on."""
        self.call("DELETE", f"/v1/keys/{key_id}")

    def opt_out(self, subject: str) -> None:
        """Turns of this subject (keyed hash) that begin after the gateways' next poll are not trained on."""
        self.call("PUT", f"/v1/opted_out/{subject}")

    def opt_in(self, subject: str) -> None:
        """The subject's turns may be trained on again; raises where it had not opted out."""
        self.call("DELETE", f"/v1/opted_out/{subject}")

    def opted_out(self) -> list[dict]:
        """Who opted out: `subject` (keyed hash) and `since`."""
        return self.call("GET", "/v1/opted_out")["opted_out"]

    def wait_evaluation_engine(
        self,
        policy: str,
        version: str,
        timeout: float,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Until an engine of the role `evaluation` is ready with `version`; raises after `timeout` s, or on `stop`."""
        deadline = clock() + timeout
        while True:
            engines = [e for e in self.fleet()["engines"] if e["policy"] == policy and _role(e) == "evaluation"]
            if any(e.get("state") == "ready" and e.get("version") == version for e in engines):
                return
            if clock() > deadline:
                said = ", ".join(_describe(e) for e in engines) or "none is registered"
                raise PipelineError(
                    f"no evaluation engine of policy {policy} was ready with {version} in {timeout:.0f} s ({said}): "
                    "its log says why, then `everloop run` goes on from here"
                )
            if stop.wait(0.5):
                raise PipelineError("asked to stop while an evaluation engine was loading")


def _role(engine: dict) -> str:
    return engine.get("role", "serve")


def _describe(engine: dict) -> str:
    why = f", {engine['error']}" if engine.get("error") else ""
    return f"{engine['engine_id']} is {engine.get('state', 'joining')} on {engine.get('version') or 'nothing'}{why}"


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", error))
