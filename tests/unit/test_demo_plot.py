"""The demo's plot on a run history that a test writes: when waves begin, and how a loop that hangs is told."""

import asyncio
import io
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.demo import machine, play
from pipelines.demo.errors import DemoFailed
from pipelines.demo.main import Options, interruptible
from pipelines.demo.model import Prepared, is_prepared
from pipelines.demo.show import Scene, Screen, render
from pipelines.demo.watch import Watch
from pipelines.errors import PipelineError
from pipelines.records import Outcome, RunState, Stage, StageState
from pipelines.runs import Runs

GOOD = machine.Machine("Linux", "x86_64", (3, 11), 2, 24 * machine.GB, 100 * machine.GB)


class Fleet:
    """Control, away or not."""

    def fleet(self) -> dict:
        raise PipelineError("control does not answer")


class People:
    """A crowd that notes when it was asked to talk."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def wave(self, turns: int) -> None:
        self.events.append(f"wave {turns}")

    async def steadily(self, per_second: float, *, until: asyncio.Event) -> None:
        self.events.append("trickle")
        await until.wait()


def watch(runs: Runs, out: io.StringIO, cycles: int = 2) -> tuple[Watch, Scene, Screen]:
    scene = Scene(cycles)
    screen = Screen(scene, Console(file=out, width=200))
    return Watch("demo", runs, Fleet(), scene, screen), scene, screen  # type: ignore[arg-type]


def finish(runs: Runs, run_id: str, stage: Stage, result: dict) -> None:
    runs.begin(run_id, stage)
    runs.end(run_id, stage, StageState.FINISHED, result)


async def test_waves_begin_with_the_verdict_or_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.demo.watch.POLL_SECONDS", 0.01)
    runs, events, out = Runs(tmp_path / "pipelines.db"), [], io.StringIO()
    watching, scene, screen = watch(runs, out)
    people = People(events)
    plot = asyncio.create_task(play._cycles(2, people, watching, scene, screen))  # type: ignore[arg-type]

    async def settle() -> list[str]:
        await asyncio.sleep(0.2)
        return list(events)

    assert await settle() == ["wave 128"]
    first = runs.create("demo").run_id
    finish(runs, first, Stage.LAND, {"ready": 96})
    finish(runs, first, Stage.TRAIN, {})
    assert await settle() == ["wave 128"]
    runs.begin(first, Stage.DECIDE)
    assert await settle() == ["wave 128", "wave 128"]
    runs.end(first, Stage.DECIDE, StageState.FINISHED, {"promoted": "c"})
    runs.begin(first, Stage.ROLL_OUT)
    runs.end(first, Stage.ROLL_OUT, StageState.FINISHED, {"swaps": [{"pause_ms": 30.0}], "converged_ms": 1.0})
    runs.move(first, RunState.DONE, "promoted", Outcome.PROMOTED)
    second = runs.create("demo").run_id
    finish(runs, second, Stage.LAND, {"ready": 90})
    finish(runs, second, Stage.DECIDE, {"promoted": "c"})
    runs.begin(second, Stage.ROLL_OUT)
    assert await settle() == ["wave 128", "wave 128", "trickle"]
    assert not plot.done()
    runs.end(second, Stage.ROLL_OUT, StageState.FINISHED, {"swaps": [], "converged_ms": 1.0})
    runs.move(second, RunState.DONE, "promoted", Outcome.PROMOTED)
    await asyncio.wait_for(plot, 5)
    said = out.getvalue()
    assert "96 turns are ready" in said
    assert "requests stood still for 30 ms" in said
    assert said.count("turns are ready") == 2


async def test_more_turns_are_sent_where_silence_left_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.demo.watch.POLL_SECONDS", 0.01)
    monkeypatch.setattr(play, "PATIENCE", 0.02)
    runs, events = Runs(tmp_path / "pipelines.db"), []
    watching, _, screen = watch(runs, io.StringIO())
    with pytest.raises(DemoFailed, match="cycle 1 does not begin"):
        await play._begun(1, People(events), watching, screen)  # type: ignore[arg-type]
    assert events == ["wave 32"] * 8


async def test_a_run_that_was_given_up_fails_the_demo(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "pipelines.db")
    watching, _, _ = watch(runs, io.StringIO())
    run_id = runs.create("demo").run_id
    runs.move(run_id, RunState.ABANDONED, "train was tried 5 times: no memory")
    with pytest.raises(DemoFailed, match="cycle 1 was given up: train was tried 5 times"):
        await watching.until(1, lambda run: False)


def test_the_view_can_be_drawn_at_any_time(tmp_path: Path) -> None:
    scene, runs = Scene(5), Runs(tmp_path / "pipelines.db")
    Console(file=io.StringIO()).print(render(scene))
    run_id = runs.create("demo").run_id
    finish(runs, run_id, Stage.LAND, {"ready": 96})
    runs.begin(run_id, Stage.FREEZE)
    scene.run = runs.get(run_id)
    scene.engines = [{"engine_id": "engine-1", "policy": "demo", "state": "ready", "version": "base"}]
    scene.turns["base"], scene.accepted["base"] = 10, 4.0
    out = io.StringIO()
    Console(file=out, width=200).print(render(scene))
    assert "✓ land" in out.getvalue()
    assert "● freeze" in out.getvalue()
    assert "0.40" in out.getvalue()


@pytest.mark.parametrize(
    ("machine_", "said"),
    [
        (GOOD, []),
        (replace(GOOD, system="Darwin", architecture="arm64"), ["Linux x86-64, this is Darwin arm64"]),
        (replace(GOOD, python=(3, 12)), ["Python 3.11, this is 3.12"]),
        (replace(GOOD, cores=1), ["2 processor cores"]),
        (replace(GOOD, free_memory=8 * machine.GB), ["16 GB of free memory, 8.0 GB are free"]),
        (replace(GOOD, free_disk=machine.GB), ["free disk here, 1.0 GB are free"]),
        (replace(GOOD, absent=("vllm",), cores=1), ["Not installed: vllm. Run `make setup`.", "2 processor cores"]),
    ],
)
def test_what_the_machine_lacks_is_a_sentence_each(machine_: machine.Machine, said: list[str]) -> None:
    found = machine.lacks(machine_)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_a_model_folder_without_manifest_or_with_a_changed_file_is_made_anew(tmp_path: Path) -> None:
    from ingest.contracts.files import list_files, write_manifest

    assert not is_prepared(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert not is_prepared(tmp_path)
    made = Prepared(package="p", version="1", files=list_files(tmp_path, "prepared.json"))
    write_manifest(tmp_path, made, "prepared.json")
    assert is_prepared(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"WEIGHTS")
    assert not is_prepared(tmp_path)


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    assert Options.read({}, tmp_path) == Options(tmp_path, cycles=3, once=False)
    given = {"DEMO": "once", "DEMO_CYCLES": "2", "DEMO_SEED": "7"}
    assert Options.read(given, tmp_path) == Options(tmp_path, cycles=2, once=True, seed=7)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_interrupted_where_a_shell_began_it_in_the_background(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as such shells do with SIGINT
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
