"""How tests are spread over processes by file: `make test` has two, one for each core.

A file's tests stay together, for the sake of its fixtures. So do files that ask for the same engines, or for the same
broker: each is started once. These come first, for they take longest; the others even out the end. So `make test`
asks pytest-xdist not to sort files by their number of tests.
"""

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SHARED = {"tied_engine": ("test_swap", "test_tap"), "broker": ("test_kafka", "test_faults")}
"""Fixtures of a session, and how the names of the files begin that ask for them."""


def shared(file: str) -> str | None:
    """What tests of a file share with those of others."""
    return next((fixture for fixture, names in SHARED.items() if file.startswith(names)), None)


class Scheduling(LoadFileScheduling):
    """pytest-xdist's own, but for what files share. (Its groups of tests have no effect with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return shared(path.rpartition("/")[2]) or path

    def add_node_collection(self, node: WorkerController, collection: list[str]) -> None:
        if len(set(collection)) < len(collection):
            raise pytest.UsageError("several tests have one name: spread by file, one of them would run")
        super().add_node_collection(node, collection)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):  # a unit test's `broker` is a stand-in of its own
            continue
        for fixture in SHARED.keys() & set(getattr(item, "fixturenames", ())) - {shared(item.path.name)}:
            raise pytest.UsageError(f"{item.path} asks for {fixture}: add it to SHARED in {__file__}")
    items.sort(key=lambda item: shared(item.path.name) is None)
