"""The processes of one machine, as supervisord's configuration.

A pure function from configuration and addresses to text. Secrets are not in it: processes inherit them from
supervisord's own environment. Every process is started again whenever it ends.
"""

import hashlib
import shlex
import sys
from pathlib import Path

import msgspec
from pydantic import BaseModel

from ingest.contracts.checkpoint import EXPORT
from pipelines.config import Config
from pipelines.home import Home
from pipelines.stack.addresses import HOST, Addresses
from serving.config import ControlSettings, GatewaySettings

_LOOK_SECONDS = {"disk": 0.5, "broker": 0.02}
"""How often the forwarder looks for what is sealed: with `ack = "broker"`, callers wait for it."""
FIRST = ("kafka", "control", "mlflow")
"""What the rest needs before it starts: control must know the policies before an engine reports for one."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `group_stop`: its children get the signal too, for it does not end them by itself."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    group_stop: bool = False
    stop_seconds: int = 20


def programs(
    config: Config,
    config_path: Path,
    home: Home,
    addresses: Addresses,
    versions: dict[str, str],
    overrides: dict[str, str],
) -> list[Program]:
    """Every process of the stack. `versions` has the checkpoint that each policy's serving engines start from;
    `overrides` the environment variables that `config` was read under."""
    ports, control = addresses.ports, addresses.control
    found = [_mlflow(home, ports["mlflow"])]
    found.append(
        _module(
            "control",
            "serving.control",
            port=ports["control"],
            database=home.control,
            settings=settings_file(home, config.control, ControlSettings)[0],
        )
    )
    if "kafka" in ports:
        found.insert(0, _kafka(home, ports))
    if addresses.kafka:
        found.append(
            _module(
                "forwarder",
                "ingest.forwarder",
                spool=home.spool,
                bootstrap=addresses.kafka,
                topic=config.log.topic,
                partitions=config.log.partitions,
                replication=config.log.replication,
                retention_days=config.log.retention_days,
                max_record_bytes=config.log.max_record_bytes,
                every=_LOOK_SECONDS[config.log.ack],
            )
        )
    gateway = _module(
        "gateway",
        "serving.gateway",
        port=ports["gateway"],
        control=control,
        spool=home.spool,
        segment_bytes=config.log.segment_bytes,
        segment_seconds=config.log.segment_seconds,
        max_bytes=config.log.max_bytes,
        ack=config.log.ack,
        workers=config.gateway.workers,
        admin_port=ports["gateway-admin"],
        snapshot=home.run / "gateway-snapshot.json",
        settings=settings_file(home, config.gateway, GatewaySettings)[0],
    )
    found.append(msgspec.structs.replace(gateway, stop_seconds=int(config.gateway.drain_seconds) + 20))
    for n, engine in enumerate(config.engines):
        version = versions[engine.policy]
        program = _module(
            f"engine-{n}",
            "serving.engines.vllm",
            control=control,
            policy=engine.policy,
            role=engine.role,
            port=ports[f"engine-{n}"],
            model=home.checkpoint(engine.policy, version) / EXPORT,
            version=version,
            weights_root=home.checkpoints,
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs,
            otlp_endpoint=config.gateway.otlp_endpoint,
        )
        extra = ("--", *engine.args) if engine.args else ()
        found.append(
            msgspec.structs.replace(
                program, command=program.command + extra, environment=engine.environment, stop_seconds=30
            )
        )
    policies = [word for name in config.policies for word in ("--policy", name)]
    reconciler = _module(
        "reconciler",
        "promotion.reconcile",
        mlflow=addresses.mlflow,
        control=control,
        checkpoints=home.checkpoints,
        **config.promotion.model_dump(),
    )
    found.append(msgspec.structs.replace(reconciler, command=(*reconciler.command, *policies)))
    grace = max((p.schedule.stop_seconds for p in config.policies.values()), default=0.0)
    scheduler = _module("scheduler", "pipelines.schedule", config=config_path)
    # The digest is there so that a changed configuration is a changed process, and restarts it.
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
    found.append(
        msgspec.structs.replace(
            scheduler, stop_seconds=int(grace) + 10, environment=overrides | {"EVERLOOP_CONFIG_DIGEST": digest}
        )
    )
    return found


def settings_file(home: Home, values: BaseModel, kind: type[BaseModel]) -> tuple[Path, bytes]:
    """The file that gives a process its settings, and what is in it. Its name changes with what it says, so that
    supervisord sees a change and restarts the process."""
    data = kind.model_validate(values.model_dump(include=set(kind.model_fields))).model_dump_json(indent=1).encode()
    return home.run / f"{kind.__name__}-{hashlib.sha256(data).hexdigest()[:8]}.json", data


def render(found: list[Program], home: Home, folder: Path) -> str:
    """supervisord's configuration. `folder` is where the processes run: that of the configuration file."""
    run = home.run
    head = f"""; Written by `everloop up`: changes are lost.
[unix_http_server]
file = {_escape(str(run / "supervisor.sock"))}
chmod = 0700

[supervisord]
logfile = {_escape(str(home.logs / "supervisord.log"))}
logfile_maxbytes = 20MB
pidfile = {_escape(str(run / "supervisord.pid"))}
childlogdir = {_escape(str(home.logs))}
umask = 077

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl = unix://{_escape(str(run / "supervisor.sock"))}
"""
    return head + "".join(_section(program, home, folder) for program in found)


def _section(program: Program, home: Home, folder: Path) -> str:
    # By `env`, for supervisord's own way of setting variables cannot quote every value.
    pairs = [f"{key}={value}" for key, value in sorted(program.environment.items())]
    command = ("env", *pairs, *program.command) if pairs else program.command
    return f"""
[program:{program.name}]
command = {_escape(shlex.join(command))}
directory = {_escape(str(folder))}
autostart = true
autorestart = true
startsecs = 1
startretries = 1000000
stopwaitsecs = {program.stop_seconds}
stopasgroup = {str(program.group_stop).lower()}
killasgroup = true
redirect_stderr = true
stdout_logfile = {_escape(str(home.logs / program.name))}.log
stdout_logfile_maxbytes = 20MB
stdout_logfile_backups = 3
"""


def _module(name: str, module: str, **options: object) -> Program:
    command = [sys.executable, "-m", module]
    for key, value in options.items():
        if value is not None:
            command += [f"--{key.replace('_', '-')}", str(value)]
    return Program(name=name, command=tuple(command))


def _mlflow(home: Home, port: int) -> Program:
    program = _module(
        "mlflow",
        "mlflow",
        host=HOST,
        port=port,
        workers=1,
        backend_store_uri=f"sqlite:///{home.mlflow / 'mlflow.db'}",
        artifacts_destination=home.mlflow / "artifacts",
    )
    python, flag, module, *options = program.command
    return msgspec.structs.replace(
        program,
        # It starts its server as a child, which would keep the port where the parent alone is killed.
        command=(
            *(python, flag, "pipelines.stack.alone", str(home.run / "mlflow.group")),
            *(python, flag, module, "server", "--serve-artifacts", *options),
        ),
        environment={
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
            "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        },
        group_stop=True,
    )


def _kafka(home: Home, ports: dict[str, int]) -> Program:
    program = _module(
        "kafka",
        "ingest.kafka_broker",
        home=home.kafka,
        port=ports["kafka"],
        controller_port=ports["kafka-controller"],
    )
    return msgspec.structs.replace(program, group_stop=True, stop_seconds=30)


def _escape(text: str) -> str:
    return text.replace("%", "%%")
