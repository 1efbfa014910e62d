"""The reconciler against a registry and a control process in memory: every case, and a crash after every call."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ingest.contracts.rollout import RolloutState
from ingest.contracts.verdict import Decision
from promotion import rollout
from promotion.control_client import FleetView
from promotion.errors import PromotionError
from promotion.http import Away
from promotion.names import TAG_OVERRIDE, TAG_REFUSED
from promotion.reconcile import Reconciler
from promotion.registry_client import ModelVersion
from tests.checkpoint_folders import make_checkpoint, make_verdict

POLICY = "assistant"


def engine(name: str, serves: str, refuses: str = "", why: str = "", attempts: int = 2, standing: bool = True) -> dict:
    """An engine as control tells of it: what is at its default is left out."""
    refusal = {"version": refuses, "error": why, "attempts": attempts} | ({} if standing else {"standing": False})
    return {"engine_id": name, "state": "ready", "version": serves} | ({"refusal": refusal} if refuses else {})


class World:
    """A registry and a control process that keep what they were told; `fail_at` counts calls down to one failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[str, ModelVersion] = {}
        self.alias: str | None = None
        self.desired: str | None = None
        self.paths: list[Path] = []
        self.converged = True
        self.refused: dict[str, str] = {}
        self.engines: tuple[dict, ...] = ()
        self.fail_at: int | None = None
        self.fail_after = False
        self.now = 100.0

    def add(self, checkpoint_id: str, decision: Decision | None, kind: str = "full") -> str:
        checkpoint = make_checkpoint(self.folder, checkpoint_id, kind=kind)
        if decision is not None:
            make_verdict(checkpoint, decision)
        number = str(len(self.models) + 1)
        self.models[number] = ModelVersion(number, checkpoint_id, {}, "as trained")
        return number

    def state(self, checkpoint_id: str) -> RolloutState | None:
        standing = rollout.read(self.folder / POLICY / checkpoint_id)
        return standing and standing.state

    def call(self, effect: Callable[[], object] = lambda: None) -> None:
        self.now += 1
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                if self.fail_after:
                    effect()
                raise Away("it is away")
        effect()

    async def champion(self, policy: str) -> ModelVersion | None:
        self.call()
        return self.models[self.alias] if self.alias else None

    async def find(self, policy: str, checkpoint_id: str) -> ModelVersion | None:
        self.call()
        return next((m for m in self.models.values() if m.checkpoint_id == checkpoint_id), None)

    async def set_champion(self, policy: str, number: str) -> None:
        self.call(lambda: setattr(self, "alias", number))

    async def drop_champion(self, policy: str) -> None:
        self.call(lambda: setattr(self, "alias", None))

    async def tag(self, policy: str, number: str, key: str, value: str) -> None:
        self.call(lambda: self.models[number].tags.__setitem__(key, value))

    async def untag(self, policy: str, number: str, key: str) -> None:
        self.call(lambda: self.models[number].tags.pop(key))

    async def describe(self, policy: str, number: str, description: str) -> None:
        old = self.models[number]
        new = ModelVersion(number, old.checkpoint_id, old.tags, description)
        self.call(lambda: self.models.__setitem__(number, new))

    async def view(self, policy: str) -> FleetView:
        self.call()
        engines = self.engines or tuple(engine(e, "base", "c1", why) for e, why in self.refused.items())
        return FleetView(self.desired, self.converged, engines)

    async def put_desired(self, policy: str, version: str, path: Path) -> None:
        def effect() -> None:
            self.desired = version
            self.paths.append(path)

        self.call(effect)


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path)
    world.alias = world.add("base", None, kind="base")
    world.desired = "base"
    return world


def reconciler(world: World) -> Reconciler:
    return Reconciler(world, world, world.folder, clock=lambda: world.now)  # type: ignore[arg-type]


async def ticks(world: World, number: int = 4, one: Reconciler | None = None) -> None:
    one = one or reconciler(world)
    for _ in range(number):
        await one.tick(POLICY)


async def test_promotion_and_rollback_by_moving_the_alias(world) -> None:
    new, one = world.add("c1", Decision.PROMOTE), reconciler(world)
    await ticks(world, 2, one)
    assert world.state("base") is RolloutState.SERVING
    world.alias, world.converged = new, False
    await ticks(world, 2, one)
    assert (world.desired, world.state("c1"), world.state("base")) == ("c1", "rolling", "retired")
    assert world.paths == [world.folder / POLICY / "c1" / "export"]
    world.converged = True
    await ticks(world, 1, one)
    assert world.state("c1") is RolloutState.SERVING
    world.alias = "1"
    await ticks(world, 2, one)
    assert (world.desired, world.state("c1"), world.state("base")) == ("base", "retired", "serving")
    world.alias = new
    await ticks(world, 2, one)
    assert (world.desired, world.state("c1")) == ("c1", "serving")


@pytest.mark.parametrize("decision", [None, Decision.HOLD, Decision.REJECT, Decision.CANARY])
async def test_what_failed_its_gate_is_refused_and_the_alias_put_back(world, decision) -> None:
    await ticks(world)
    world.alias = bad = world.add("bad", decision)
    await ticks(world)
    assert (world.alias, world.desired, world.paths) == ("1", "base", [])
    refused = world.models[bad]
    assert ("never evaluated" if decision is None else str(decision)) in refused.tags[TAG_REFUSED]
    assert refused.description.startswith("as trained\n\n**Refused as champion:**")
    world.alias = bad
    await ticks(world)
    assert world.models[bad].description.count("Refused") == 1


async def test_an_override_lets_it_serve_and_clears_the_refusal(world) -> None:
    world.alias = bad = world.add("bad", Decision.REJECT)
    await ticks(world)
    world.models[bad].tags[TAG_OVERRIDE] = "ticket 7"
    world.alias = bad
    await ticks(world)
    assert (world.desired, world.state("bad")) == ("bad", "serving")
    assert TAG_REFUSED not in world.models[bad].tags
    standing = rollout.read(world.folder / POLICY / "bad")
    assert standing is not None
    assert standing.overridden_by == "ticket 7"


async def test_damaged_weights_never_serve_not_even_by_override(world) -> None:
    world.alias = bad = world.add("bad", Decision.PROMOTE)
    world.models[bad].tags[TAG_OVERRIDE] = "ticket 7"
    (world.folder / POLICY / "bad" / "export" / "model.safetensors").write_bytes(b"weights of bar")
    await ticks(world)
    assert (world.alias, world.desired) == ("1", "base")
    assert "differs from its manifest" in world.models[bad].tags[TAG_REFUSED]


async def test_a_source_that_leads_elsewhere_is_refused(world) -> None:
    world.models["2"] = ModelVersion("2", None, {}, "")
    world.alias = "2"
    await ticks(world)
    assert (world.alias, world.desired) == ("1", "base")


async def test_a_refused_version_that_control_already_desires_is_driven_out(world) -> None:
    await ticks(world)
    world.alias = world.add("bad", Decision.REJECT)
    world.desired = "bad"
    await ticks(world)
    assert (world.alias, world.desired, world.state("base")) == ("1", "base", "serving")


async def test_what_someone_told_control_behind_the_registrys_back_is_undone(world) -> None:
    world.add("bad", Decision.REJECT)
    await ticks(world)
    world.desired = "bad"
    await ticks(world)
    assert (world.alias, world.desired) == ("1", "base")


async def test_with_nothing_good_in_the_registry_the_alias_goes(world) -> None:
    world.alias = world.add("bad", Decision.REJECT)
    del world.models["1"]
    await ticks(world)
    assert (world.alias, world.desired) == (None, "base")


async def test_no_alias_and_an_unknown_policy_change_nothing(world) -> None:
    world.alias = None
    await ticks(world)
    world.alias, world.desired = "1", None
    await ticks(world)
    assert world.desired is None


async def test_what_all_engines_refuse_is_rolled_back_and_marked(world) -> None:
    one = reconciler(world)
    await ticks(world, 4, one)
    world.alias = new = world.add("c1", Decision.PROMOTE)
    world.converged = False
    await ticks(world, 4, one)
    assert (world.alias, world.desired, world.state("c1")) == (new, "c1", "rolling"), "engines may take their time"
    world.refused = {"e1": "shapes differ", "e2": "no such folder"}
    await ticks(world, 1, one)
    assert (world.alias, world.state("c1")) == ("1", "rejected")
    world.converged = True
    await ticks(world, 4, one)
    assert (world.desired, world.state("base")) == ("base", "serving")
    said = "it was rolled back: engine e1 refused it: shapes differ; engine e2 refused it: no such folder"
    assert world.models[new].tags[TAG_REFUSED] == said
    assert world.models[new].description.count(said) == 1
    world.alias = new
    await ticks(world)
    assert (world.alias, world.desired) == ("1", "base"), "its verdict counts no more"


async def test_what_the_run_took_back_for_time_is_put_back(world) -> None:
    one = reconciler(world)
    await ticks(world, 4, one)
    world.alias, world.converged = world.add("c1", Decision.PROMOTE), False
    await ticks(world, 4, one)
    rollout.take_back(world.folder / POLICY / "c1", "not everywhere after 300 s", now=200.0)
    await ticks(world, 4, one)
    assert (world.alias, world.desired, world.state("c1")) == ("1", "base", "rejected")
    assert "rolled back: not everywhere after 300 s" in world.models["2"].tags[TAG_REFUSED]


async def test_the_alias_goes_back_to_what_the_engines_serve(world) -> None:
    """Records can be lost, and the last to retire need not be what serves."""
    await ticks(world)
    for checkpoint_id in ("c5", "c6"):
        world.alias = world.add(checkpoint_id, Decision.PROMOTE)
        await ticks(world)
    world.alias = world.add("c1", Decision.PROMOTE)
    world.converged, world.engines = False, (engine("e1", "c5", "c1", "no"),)
    await ticks(world, 3)
    assert world.models[world.alias].checkpoint_id == "c5"


async def test_an_override_lets_a_refused_version_try_once_more(world) -> None:
    await ticks(world)
    world.alias = new = world.add("c1", Decision.PROMOTE)
    world.converged, world.refused = False, {"e1": "the disk is full"}
    await ticks(world)
    world.models[new].tags[TAG_OVERRIDE] = "there is room now"
    world.alias, world.refused = new, {}
    await ticks(world)
    assert (world.alias, world.desired, world.state("c1")) == (new, "c1", "rolling")
    world.refused = {"e1": "the disk is full"}
    await ticks(world)
    assert (world.alias, world.desired) == ("1", "base")
    assert TAG_OVERRIDE not in world.models[new].tags


async def test_a_crash_while_a_refused_version_is_taken_back_is_made_good(tmp_path) -> None:
    for at in range(12):
        world = World(tmp_path / f"{at}")
        world.alias = world.add("base", None, kind="base")
        world.desired = "base"
        await ticks(world)
        world.alias = world.add("c1", Decision.PROMOTE)
        world.converged, world.refused = False, {"e1": "no"}
        world.fail_at = at
        for _ in range(8):
            with suppress(PromotionError):
                await ticks(world, 1)
        assert (world.alias, world.desired, world.state("c1")) == ("1", "base", "rejected")


@pytest.mark.parametrize(
    ("engines", "refused"),
    [
        ([engine("e1", "c1", "c2", "no"), engine("e2", "c1", "c2", "nor I")], {"e1": "no", "e2": "nor I"}),
        ([engine("e1", "c1", "c2", "no"), engine("e2", "c1", "c2", "nor I", attempts=1)], {}),  # killed, perhaps
        (
            # Engines that load cold try again in turn, so seldom do the refusals of all stand at once.
            [engine("e1", "c1", "c2", "no"), engine("e2", "c1", "c2", "nor I", standing=False)],
            {"e1": "no", "e2": "nor I"},
        ),
        ([engine("e1", "c1", "c2", "no"), engine("e2", "c2")], {}),  # one took it in
        ([engine("e1", "c1", "c9", "no")], {}),  # another version
        ([engine("e1", "c1", "c2", "no"), engine("e2", "")], {}),  # one has not tried yet
        ([engine("e1", "c1", "c2", "no"), engine("e2", "c1") | {"state": "lost"}], {"e1": "no"}),
        ([], {}),
    ],
)
def test_a_version_is_refused_when_every_engine_failed_at_it_twice(engines, refused) -> None:
    assert FleetView("c2", False, tuple(engines)).refusals("c2") == refused


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("decision", [Decision.PROMOTE, Decision.REJECT])
async def test_a_crash_at_any_call_is_made_good_by_the_next_process(tmp_path, decision, after) -> None:
    for at in range(12):
        world = World(tmp_path / f"{at}")
        world.alias = world.add("base", None, kind="base")
        world.desired = "base"
        await ticks(world)
        world.alias = world.add("c1", decision)
        world.fail_at, world.fail_after = at, after
        served: list[str | None] = []
        for _ in range(6):
            try:
                await ticks(world, 1)  # a new reconciler each time: nothing is remembered
            except PromotionError:
                served.append(world.desired)
        good = decision is Decision.PROMOTE
        assert (world.alias, world.desired) == (("2", "c1") if good else ("1", "base"))
        assert world.state("c1" if good else "base") is RolloutState.SERVING
        assert good or "c1" not in served
