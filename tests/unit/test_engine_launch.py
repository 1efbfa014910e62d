"""How vLLM is started, and how long a version that failed is left alone."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ingest.contracts.fleet import Refusal, Version
from serving.engines.launch import EngineSettings, command, environment
from serving.engines.refusals import FIRST_SECONDS, LONGEST_SECONDS, Refusals
from serving.engines.vllm import parse

LINE = [
    "--control",
    "http://c",
    "--policy",
    "p",
    "--port",
    "81",
    "--model",
    "/m",
    "--version",
    "v1",
    "--weights-root",
    "/w",
]


def test_a_command_line_with_vllms_own_arguments_after_the_dashes() -> None:
    settings = parse(
        [*LINE, "--role", "evaluation", "--max-model-len", "512", "--", "--tool-call-parser", "hermes"], "h"
    )
    assert (settings.engine_id, settings.url, settings.role) == ("h-81", "http://127.0.0.1:81", "evaluation")
    assert (settings.max_model_len, settings.model, settings.extra) == (
        512,
        Path("/m"),
        ("--tool-call-parser", "hermes"),
    )


def test_vllms_command_line_and_environment() -> None:
    settings = parse([*LINE, "--", "--seed", "1"], "h")
    words = command(settings, Version("v2", "/w/v2"), cpu=True)
    assert words[1:5] == ["-m", "serving.engines.api_server", "--model", "/w/v2"]
    assert words[-2:] == ["--seed", "1"]
    assert "--enforce-eager" in words
    assert "--enforce-eager" not in command(settings, Version("v2", "/w/v2"), cpu=False)
    base = {
        "EVERLOOP_CONTROL_TOKEN": "c",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/bin",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    given = environment(base, settings, Version("v2", "/w/v2"), "engine-token")
    assert "EVERLOOP_CONTROL_TOKEN" not in given
    assert "PYTHONDONTWRITEBYTECODE" not in given
    assert (given["VLLM_API_KEY"], given["EVERLOOP_VERSION"], given["EVERLOOP_WEIGHTS_ROOT"]) == (
        "engine-token",
        "v2",
        "/w",
    )
    assert (given["VLLM_PLUGINS"], given["VLLM_CPU_KVCACHE_SPACE"], given["PATH"]) == ("everloop", "4", "/bin")
    assert "engine-token" not in " ".join(words)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError):
        EngineSettings(**{**parse(LINE, "h").model_dump(), "colour": "red"})


def test_a_refused_version_waits_longer_each_time() -> None:
    now = 100.0
    refusals = Refusals(lambda: now)
    assert not refusals.stand("v")
    refusals.add("v", "why")
    assert refusals.stand("v")
    assert not refusals.stand("w")
    now += FIRST_SECONDS
    assert not refusals.stand("v")
    refusals.add("v", "why")
    now += FIRST_SECONDS * 1.5
    assert refusals.stand("v")
    for _ in range(20):
        refusals.add("v", "why")
    now += LONGEST_SECONDS
    assert not refusals.stand("v")
    refusals.add("v", "why")
    refusals.forget("v")
    assert not refusals.stand("v")


def test_what_failed_last_is_told() -> None:
    now = 100.0
    refusals = Refusals(lambda: now)
    assert refusals.last() is None
    for version in ("v", "w", "v"):
        refusals.add(version, f"{version} is damaged")
    assert refusals.last() == Refusal(version="v", error="v is damaged", attempts=2, standing=True)
    now += LONGEST_SECONDS
    assert refusals.last() == Refusal(version="v", error="v is damaged", attempts=2, standing=False)
    refusals.forget("v")
    assert refusals.last() == Refusal(version="w", error="w is damaged", attempts=1, standing=False)
    refusals.restart()
    assert refusals.last() == Refusal(version="w", error="w is damaged", attempts=1, standing=True)
    refusals.clear()
    assert refusals.last() is None


def test_traces_go_where_the_gateways_go_and_media_redirects_are_not_followed() -> None:
    settings = parse([*LINE, "--otlp-endpoint", "http://collector:4318/v1/traces"], "h")
    words = command(settings, Version("v1", "/m"), cpu=True)
    assert words[words.index("--otlp-traces-endpoint") + 1] == "http://collector:4318/v1/traces"
    assert "--otlp-traces-endpoint" not in command(parse(LINE, "h"), Version("v1", "/m"), cpu=True)
    given = environment({"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "1"}, settings, Version("v1", "/m"), "t")
    assert given["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert given["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
