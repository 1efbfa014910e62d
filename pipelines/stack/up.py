"""Brings the stack of one home folder up, and down again.

Up reads as the order of things: checks, what a dead supervisor left, addresses and secrets, the base checkpoint of
each policy, the processes that others need, the policies in control and in the registry, everything else, and health.
Each step may be done again: `up` on a stack that runs changes only what the configuration changed.
"""

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from ingest.config import LogSettings
from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.files import write_atomically
from ingest.contracts.process_logs import message_of
from pipelines.config import Config
from pipelines.config.reading import PREFIX
from pipelines.control import Control
from pipelines.errors import PipelineError
from pipelines.home import BASE, Home
from pipelines.lease import holder_of
from pipelines.stack import addresses, checks, leftovers, programs, secrets
from pipelines.stack.addresses import Addresses
from pipelines.stack.supervisor import Supervisor
from promotion import rollout
from serving.config import ControlSettings, GatewaySettings

Tell = Callable[[str, str], None]
"""Hears (part, what it is doing) while the stack starts."""


STARTS = 5
"""A process that was begun so often while `up` waits will not come into service by waiting longer."""


class Stack:
    """The processes of one configuration on this machine."""

    def __init__(self, config: Config, config_path: Path, tell: Tell = lambda part, doing: None) -> None:
        self.config, self.config_path = config, config_path.resolve()
        self.home = Home.of(config)
        self.supervisor = Supervisor(self.home)
        self._tell = tell

    def up(self) -> Addresses:
        """Starts what does not run, waits until everything is in service; raises `PipelineError` where it cannot."""
        running = self.supervisor.running
        if not running:
            self._check_and_clear()
        self.home.create()
        kafka = self._kafka()
        where = addresses.choose(self.config, self.home, kafka, self._free if running else None)
        keys = secrets.load_or_create(self.home.run / "secrets.json")
        for policy in self.config.policies:
            self._tell("model", f"checkpoint {BASE} of {policy}")
            self._import(policy)
        overrides = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
        found = programs.programs(
            self.config, self.config_path, self.home, where, self.start_versions(running), overrides
        )
        if not running:
            self._write([p for p in found if p.name in programs.FIRST])
            self.supervisor.start(keys.environment())
        control = Control(where.control, keys.control_token)
        if kafka and self.config.log.own_broker:
            # The scheduler lands at once: without a topic its first run would fail.
            self._wait("kafka", lambda: _has_topic(self.config.log_settings(where.kafka)))
        self._wait("control", lambda: _answers(f"{where.control}/health"))
        self._policies(control)
        self._evaluation_key(control, keys)
        self._write(found)
        self.supervisor.apply()
        self._wait("mlflow", lambda: _answers(f"{where.mlflow}/health"))
        for policy in self.config.policies:
            self._tell("registry", f"champion of {policy}")
            self._register(policy, where.mlflow)
        self._wait("gateway", lambda: _answers(f"{where.gateway}/health"))
        self._wait("scheduler", lambda: holder_of(self.home.database, "scheduler", time.time()) is not None)
        self._wait("engines", lambda: self._converged(control))
        return where

    def down(self, timeout: float = 90.0) -> list[int]:
        """Stops everything; the processes that had to be ended by hand. Raises where one is left all the same."""
        session = self.supervisor.pid
        self.supervisor.shut_down(timeout)
        rest = leftovers.find(self.home.root, session)
        leftovers.end(rest)
        left = leftovers.find(self.home.root, session)
        if left:
            names = ", ".join(f"{leftovers.name_of(pid)} ({pid})" for pid in left)
            raise PipelineError(f"these processes did not end: {names}: end them by hand")
        return rest

    # --- steps ---------------------------------------------------------------------------------------------------

    def _check_and_clear(self) -> None:
        """What a killed supervisor left serves on until it is known that a new stack could start in its place."""
        rest = leftovers.find(self.home.root, self.supervisor.pid)
        if rest:
            self._check(begun=True)
            names = ", ".join(sorted({leftovers.name_of(pid) for pid in rest}))
            self._tell("leftovers", f"ending {len(rest)} processes of a stack whose supervisor was killed: {names}")
            leftovers.end(rest)
        self._check(begun=False)

    def _check(self, *, begun: bool) -> None:
        found = checks.all_of(self.config, self.home.root, begun=begun)
        wrong = [check.advice for check in found if check.fatal and not check.ok]
        if wrong:
            raise PipelineError("\n".join(wrong))

    def _kafka(self) -> bool:
        kind = self.config.log.kind
        if kind != "auto":
            return kind == "kafka"
        if not self.config.log.own_broker:
            self._tell("log", "kafka: [log] bootstrap is set")
            return True
        found = checks.kafka(self.config)
        self._tell("log", f"{'kafka' if found.ok else 'embedded'}: {found.seen}")
        return found.ok

    def _free(self, port: int) -> bool:
        """On a stack that runs, its own ports are its to keep."""
        return port in addresses.load(self.home).ports.values() or addresses.is_free(port)

    def _import(self, policy: str) -> None:
        if not (self.home.checkpoint(policy, BASE) / "manifest.json").exists():
            from trainer.checkpoints import import_model

            import_model(self.config.policies[policy].model, self.home.checkpoints, policy)

    def start_versions(self, running: bool) -> dict[str, str]:
        """What engines start from: what serves, so that a start needs no swap.

        On a stack that runs, what they were started from: another version in their command would restart them all.
        """
        path = self.home.run / "versions.json"
        before = msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if running and path.exists() else {}
        versions = {policy: before.get(policy) or self._serving(policy) for policy in self.config.policies}
        write_atomically(path, msgspec.json.encode(versions))
        return versions

    def _serving(self, policy: str) -> str:
        """The version that serves, or is on its way to, by the rollout records."""
        return next(iter(rollout.newest_in(rollout.IN_SERVICE, self.home.checkpoints / policy)), BASE)

    def _write(self, found: list[programs.Program]) -> None:
        for values, kind in ((self.config.gateway, GatewaySettings), (self.config.control, ControlSettings)):
            path, data = programs.settings_file(self.home, values, kind)
            path.write_bytes(data)
        self.supervisor.configuration.write_text(programs.render(found, self.home, self.config_path.parent))

    def _policies(self, control: Control) -> None:
        for name, policy in self.config.policies.items():
            export = self.home.checkpoint(name, BASE) / EXPORT
            redaction = policy.redaction.model_dump(mode="json")
            control.put_policy(name, BASE, export, policy.capture, policy.sampling, redaction)

    def _evaluation_key(self, control: Control, keys: secrets.Secrets) -> None:
        known = {key["key_id"] for key in control.list_keys() if key.get("revoked_at") is None}
        if keys.evaluation_key and keys.evaluation_key_id in known:
            return
        made = control.create_key("everloop evaluation", ["inference", "evaluation"], train=False)
        fresh = keys.with_evaluation_key(made["key"], made["key_id"])
        secrets.save(self.home.run / "secrets.json", fresh)

    def _register(self, policy: str, mlflow: str) -> None:
        from promotion import registry

        if registry.champion(mlflow=mlflow, policy=policy) is None:
            version = self._serving(policy)
            registry.register(mlflow=mlflow, checkpoint=self.home.checkpoint(policy, version))
            registry.promote(mlflow=mlflow, checkpoints=self.home.checkpoints, policy=policy, checkpoint_id=version)

    def _converged(self, control: Control) -> bool:
        fleet = control.fleet()
        engines = [e for e in fleet["engines"] if e.get("state") != "lost"]
        ready = [e for e in engines if e.get("state") == "ready"]
        self._tell("engines", f"{len(ready)} of {len(self.config.engines)} ready")
        return len(ready) >= len(self.config.engines) and all(fleet["converged"].values())

    def _wait(self, part: str, done: Callable[[], bool]) -> None:
        self._tell(part, "starting")
        deadline = time.monotonic() + self.config.everloop.start_seconds
        began: dict[str, set[float]] = {}
        while not done():
            for process in self.supervisor.processes():
                starts = began.setdefault(process.name, set())
                starts.add(process.since)
                if len(starts) >= STARTS:
                    raise PipelineError(
                        f"{process.name} ended {len(starts) - 1} times while {part} was starting; the last line of "
                        f"{self.home.logs / process.name}.log: {_last_line(self.home.logs / f'{process.name}.log')}"
                    )
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"{part} was not in service after {self.config.everloop.start_seconds:.0f} s: its log in "
                    f"{self.home.logs} says why; `everloop down` stops the rest"
                )
            if not self.supervisor.running:
                raise PipelineError(
                    f"supervisord ended while {part} was starting: see {self.home.logs}/supervisord.log"
                )
            time.sleep(0.25)
        self._tell(part, "in service")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return message_of(lines[-1])[:300] if lines else "(it is empty)"


def _has_topic(log: LogSettings) -> bool:
    from kafka.errors import KafkaError

    from ingest.kafka_topic import ensure_topic

    try:
        ensure_topic(log)
    except KafkaError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (OSError, urllib.error.HTTPError):
        return False
