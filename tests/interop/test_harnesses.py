"""Unmodified harnesses, installed from their registries, through a gateway to vLLM.

It serves a random model, which calls no tools: what it shows is that a harness's own requests reach an engine as they
are, whole. Turns are read from the spool. `test_harness_tasks.py` has what becomes of whole tasks.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.contracts.arrays import unpack_ids
from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.turn import Finish, Span
from pipelines.stack.addresses import free_port
from tests.checkpoint_folders import complete
from tests.integration.serving_stack import Stack, wait_until
from tests.interop import harnesses
from tests.interop.harnesses import HARNESSES, Place
from tests.interop.recorded import turns, until_served
from tests.interop.talker import CONTEXT, make_talker
from tests.tiny_models import tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.engine]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Control, gateway, and vLLM for the policy `random`."""
    home = tmp_path_factory.mktemp("interop")
    stack, weights = Stack(home), home / "checkpoints"
    model = make_talker(weights / "random" / "v1" / EXPORT)
    complete(model.parent)
    try:
        stack.start_control()
        body = {"name": "random", "desired": {"version": "v1", "path": str(model)}}
        stack.control("PUT", "/v1/policies/random", body).raise_for_status()
        where = ("--control", stack.control_url, "--max-model-len", str(CONTEXT))
        served = ("--policy", "random", "--version", "v1", "--model", str(model), "--weights-root", str(weights))
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        stack.start("agent", "serving.engines.vllm", *where, *served, "--port", str(free_port()), "--", *tools)
        stack.start_gateway("--segment-seconds", "0.5")
        until_served(stack, "random")
        yield stack
    finally:
        if "agent" in stack.processes:
            stack.stop("agent")  # with its vLLM
        stack.stop_all()


@pytest.mark.parametrize("name", [name for name in HARNESSES if name not in ("pi-responses", "pi-messages")])
def test_a_turn_of_vllm(stack: Stack, tmp_path: Path, name: str) -> None:
    driver, dialect = HARNESSES[name]
    before = len(turns(stack))
    place = Place.below(tmp_path, stack.gateway_url, stack.key("inference"), "random")
    ran = harnesses.run(driver(place, "Talk to me."), place)
    assert ran.status == 0, f"{ran.output}\n{(stack.home / 'gateway.log').read_text()[-3000:]}"
    wait_until(lambda: len(turns(stack)) > before, f"a turn:\n{ran.output}")
    (turn,) = turns(stack)[before:]
    ids = list(unpack_ids(turn.output_ids))
    assert (turn.dialect, turn.finish) == (dialect, Finish.STOP)
    assert turn.check() is None
    assert turn.trainable, turn.untrainable_reason
    assert turn.weight_versions == (Span("v1", 0, len(ids)),)
    assert tokenizer().decode(ids, skip_special_tokens=True).strip() in ran.output
    assert "Talk to me." in tokenizer().decode(list(unpack_ids(turn.prompt_ids)))
