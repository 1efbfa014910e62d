"""The end of the demo on a terminal: the numbers of the report, in an order in which one wants to know them."""

from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def show(report: dict[str, Any], folder: Path, console: Console) -> None:
    """Prints the summary of `report`, which lies in `folder`."""
    low, high = report["difference_interval"]

    def say(*parts: RenderableType) -> None:
        console.print(*parts, soft_wrap=True)

    say()
    for problem in report["problems"]:
        say(Text(f"FAILED: {problem}", "bold red"))
    say(
        Text(
            f"Acceptance {report['acceptance_before']:.2f} → {report['acceptance_after']:.2f}, "
            f"difference {report['difference']:+.2f}, 95 % [{low:+.2f}, {high:+.2f}], "
            f"on {report['questions']} questions that no gate and no cycle ever saw",
            "bold",
        )
    )
    say(
        f"{report['cycles']} cycles: {report['promotions']} promoted, {report['held']} held, "
        f"{report['rejected']} rejected, {report['stopped']} stopped; "
        f"{report['seconds'] / 60:.1f} minutes; the log was {report['log']}"
    )
    say(
        f"{report['turns']} turns, {report['captured']} captured, {report['failed_requests']} failed requests, "
        f"{report['retries']} retries; {_counted(report['states'])}"
    )
    say(_versions(report))
    for swap in report["swaps"]:
        say(
            f"swap {swap['from_version']} → {swap['to_version']}: {swap['in_flight']} requests in flight stood still "
            f"for {swap['pause_ms']:.0f} ms, "
            f"the fleet converged in {swap['converged_ms']:.0f} ms"
        )
    say()
    for answer in report["answers"][:4]:
        say(Text(answer["question"], "bold"))
        for when in ("before", "after"):
            side = answer[when]
            say(Text(f"  {when:<6} {side['acceptance']:.2f}  {' '.join(side['text'].split())}"))
    say()
    say(f"report      {folder / 'report.html'}")
    for name, url in report["addresses"].items():
        say(f"{name:<11} {url}")


def _versions(report: dict) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("version", "verdict", "held-out", "difference", "users"):
        table.add_column(name)
    table.add_row(report["base"]["version"], "base", "", "", _share(report["base"]["users"]))
    for v in report["versions"]:
        means = f"{v['champion_mean']:.2f} → {v['challenger_mean']:.2f}" if "challenger_mean" in v else ""
        interval = f"[{v['low']:+.3f}, {v['high']:+.3f}]" if "low" in v else ""
        table.add_row(v["version"], v["outcome"], means, interval, _share(v["users"]))
    return table


def _share(users: dict) -> str:
    return "" if users["acceptance"] is None else f"{users['acceptance']:.2f} of {users['turns']} turns"


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
