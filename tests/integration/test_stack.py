"""supervisord with trivially light processes: brought up, killed one by one, updated, brought down, survived."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.stack import addresses, leftovers
from pipelines.stack.programs import Program, render
from pipelines.stack.supervisor import Supervisor

pytestmark = pytest.mark.integration

SLEEPER = "import os, sys, time; print(os.environ.get('SECRET'), flush=True); time.sleep(600)"


def sleeper(name: str, code: str = SLEEPER, **environment: str) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), environment=environment, stop_seconds=5)


def until(done: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def running(supervisor: Supervisor) -> dict[str, int]:
    return {p.name: p.pid for p in supervisor.processes() if p.state == "running"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home.at(tmp_path / "home").create()
    yield found
    supervisor = Supervisor(found)
    session = supervisor.pid
    supervisor.shut_down(20)
    leftovers.end(leftovers.find(found.root, session), grace=2)


def started(home: Home, *programs: Program) -> Supervisor:
    supervisor = Supervisor(home)
    supervisor.configuration.write_text(render(list(programs), home, home.root))
    supervisor.start({"SECRET": "the token"})
    until(lambda: len(running(supervisor)) == len(programs))
    return supervisor


def test_each_process_that_is_killed_is_started_again(home: Home) -> None:
    supervisor = started(home, sleeper("one"), sleeper("two", percent='5% "x"'))
    for name, pid in running(supervisor).items():
        os.kill(pid, signal.SIGKILL)
        until(lambda: running(supervisor).get(name) not in (None, pid))  # noqa: B023


def test_secrets_go_by_environment_and_stand_in_no_file_of_the_supervisor(home: Home) -> None:
    supervisor = started(home, sleeper("one"))
    until(lambda: "the token" in (home.logs / "one.log").read_text())
    assert "the token" not in supervisor.configuration.read_text()
    assert "the token" not in (home.logs / "supervisord.log").read_text()


def test_an_update_touches_only_what_changed(home: Home) -> None:
    supervisor = started(home, sleeper("stays"), sleeper("changes"), sleeper("goes"))
    before = running(supervisor)
    after = [sleeper("stays"), sleeper("changes", x="1"), sleeper("new")]
    supervisor.configuration.write_text(render(after, home, home.root))
    supervisor.apply()
    until(lambda: set(running(supervisor)) == {"stays", "changes", "new"})
    now = running(supervisor)
    assert now["stays"] == before["stays"]
    assert now["changes"] != before["changes"]
    assert not Path(f"/proc/{before['goes']}").exists()


def test_down_leaves_nothing(home: Home) -> None:
    supervisor = started(home, sleeper("one"), sleeper("two"))
    session = supervisor.pid
    assert len(leftovers.find(home.root, session)) == 3
    supervisor.shut_down(20)
    until(lambda: leftovers.find(home.root, session) == [])
    assert not supervisor.running
    assert supervisor.processes() == []


def test_what_a_killed_supervisor_left_is_found_and_ended(home: Home) -> None:
    # The second hides its environment, as processes that set their title do: its session gives it away.
    hidden = "import os, sys; os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'], {})"
    supervisor = started(home, sleeper("one"), sleeper("two", hidden))
    pids = set(running(supervisor).values())
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not supervisor.running)
    left = leftovers.find(home.root, supervisor.pid)
    assert set(left) == pids
    leftovers.end(left)
    until(lambda: leftovers.find(home.root, supervisor.pid) == [])
    assert set(running(started(home, sleeper("one")))) == {"one"}


def test_processes_of_another_home_are_nobodys_business(home: Home, tmp_path: Path) -> None:
    supervisor = started(home, sleeper("one"))
    assert leftovers.find(tmp_path / "elsewhere", None) == []
    assert running(supervisor)


def test_a_supervisor_that_refuses_says_why(home: Home) -> None:
    supervisor = Supervisor(home)
    supervisor.configuration.write_text("[supervisord]\nlogfile = /no/such/folder/log\n")
    with pytest.raises(PipelineError, match="supervisord did not start"):
        supervisor.start({})


def test_a_program_whose_parent_alone_was_killed_gets_its_port_back(home: Home) -> None:
    port = addresses.free_port()
    server = f"import http.server as h; h.HTTPServer(('127.0.0.1', {port}), h.BaseHTTPRequestHandler).serve_forever()"
    parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {server!r}]))"
    command = (sys.executable, "-m", "pipelines.stack.alone", str(home.run / "x.group"), sys.executable, "-c", parent)
    supervisor = started(home, Program(name="x", command=command, group_stop=True, stop_seconds=5))
    until(lambda: not addresses.is_free(port))
    children = leftovers.members(running(supervisor)["x"], f"{leftovers.MARK}={home.root}")
    assert len(children) == 2
    os.kill(running(supervisor)["x"], signal.SIGKILL)
    until(lambda: running(supervisor).get("x") not in (None, *children))
    until(lambda: len(leftovers.members(running(supervisor)["x"], f"{leftovers.MARK}={home.root}")) == 2)
    assert not set(children) & set(leftovers.find(home.root, None))
