"""`report.html`: the report as one page that needs nothing else.

Made from `report.json`'s values alone, so the two cannot differ. Whatever a model or a person wrote is escaped. What
failed stands first.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

from pipelines.demo.picture import acceptance_over_time
from pipelines.records import Outcome

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#1c2430;background:#fff}
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.15em;margin-top:2em}small,.dim{color:#6a7480}
.tiles{display:flex;flex-wrap:wrap;gap:.8em;margin:1.2em 0}.tiles div{border:1px solid #d9dee4;border-radius:8px;
padding:.6em .9em;min-width:8em}.tiles b{display:block;font-size:1.45em;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #e3e7ec;padding:.35em .6em .35em 0;
text-align:left;vertical-align:top}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.promoted{color:#16703a}.rejected,.training_stopped,.gate_failed,.rolled_back{color:#a3161b}.held,.canary{color:#8a5a00}
.problems{background:#fdeaea;border-left:4px solid #a3161b;padding:.7em 1em}td q{quotes:none;white-space:pre-wrap}
svg{width:100%;height:auto;font:11px system-ui,sans-serif;fill:#4b5561}svg .grid{stroke:#e3e7ec}
svg .band0{fill:#2f6fd01a}svg .band1{fill:#2f6fd00a}svg line.live{stroke:#2f6fd0;stroke-dasharray:3 3}
svg text.live{fill:#2f6fd0}svg polyline{fill:none;stroke:#1c7c4a;stroke-width:1.6}svg circle{fill:#1c7c4a}
"""


def page(report: dict[str, Any]) -> str:
    """The whole document."""
    low, high = report["difference_interval"]
    tiles = (
        ("acceptance before", f"{report['acceptance_before']:.2f}"),
        ("acceptance after", f"{report['acceptance_after']:.2f}"),
        ("difference, 95 %", f"{report['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"),
        ("cycles", report["cycles"]),
        ("promoted · held · rejected", f"{report['promotions']} · {report['held']} · {report['rejected']}"),
        ("failed requests", report["failed_requests"]),
        ("retries of the client", report["retries"]),
        ("turns captured", f"{report['captured']} of {report['turns']}"),
        ("minutes", f"{report['seconds'] / 60:.1f}"),
    )
    body = [
        "<h1>everloop: what the loop did</h1>",
        f"<p class=dim>Before and after are measured on {report['questions']} questions that no gate and no cycle ever "
        f"saw, {report['answers_per_question']} answers each; the interval is paired over questions. "
        f"The log was {_text(report['log'])}.</p>",
        _problems(report["problems"]),
        "<div class=tiles>" + "".join(f"<div><b>{_text(value)}</b>{name}</div>" for name, value in tiles) + "</div>",
        "<h2>Acceptance of users' turns over time</h2>",
        acceptance_over_time(report["series"], report["seconds"]),
        "<p class=dim>Each dot is the mean true acceptance of 16 turns; lines mark versions coming into service.</p>",
        "<h2>Versions and their verdicts</h2>",
        _versions(report),
        "<h2>Swaps, under traffic</h2>",
        _swaps(report["swaps"]),
        "<h2>Answers before and after</h2>",
        "<p class=dim>Drawn at random with a fixed seed; the number is the true probability of acceptance.</p>",
        _answers(report["answers"]),
        "<h2>Where the time went</h2>",
        _table(("step", "seconds"), report["steps"].items()),
        _table(("stage of a cycle", "seconds, mean"), report["stages"].items()),
        "<h2>Turns by state</h2>",
        _table(("state", "turns"), sorted(report["states"].items())),
        "<h2>Look further</h2><ul>",
        *(f'<li>{_text(name)}: <a href="{_text(url)}">{_text(url)}</a></li>' for name, url in _links(report)),
        "</ul>",
    ]
    head = f"<meta charset=utf-8><title>everloop: report of the demo</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>\n"


def _links(report: dict) -> Iterable[tuple[str, str]]:
    names = {"mlflow": "MLflow: runs and registry", "data_docs": "Data Docs: the gate", "gateway": "the gateway"}
    return ((names.get(name, name), url) for name, url in report["addresses"].items())


def _problems(problems: list[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{_text(problem)}</li>" for problem in problems)
    return f"<div class=problems><b>This run failed.</b><ul>{items}</ul></div>"


def _versions(report: dict) -> str:
    rows = [(report["base"]["version"], "base", "", "", *_users(report["base"]["users"]), "")]
    for v in report["versions"]:
        compared = f"{v['champion_mean']:.3f} → {v['challenger_mean']:.3f}" if "challenger_mean" in v else ""
        interval = f"[{v['low']:+.3f}, {v['high']:+.3f}]" if "low" in v else ""
        rows.append((v["version"], v["outcome"], compared, interval, *_users(v["users"]), v["reason"]))
    head = ("version", "verdict", "held-out: champion → it", "difference", "users' turns", "their acceptance", "why")
    return _table(head, rows)


def _users(users: dict) -> tuple[object, object]:
    return users["turns"], "" if users["acceptance"] is None else f"{users['acceptance']:.3f}"


def _swaps(swaps: list[dict]) -> str:
    if not swaps:
        return "<p>None.</p>"
    head = (
        "engine",
        "from",
        "to",
        "requests in flight",
        "they stood still, ms",
        "whole swap, ms",
        "fleet converged, ms",
    )
    return _table(
        head,
        (
            (s["engine_id"], s["from_version"], s["to_version"], s["in_flight"], *(round(s[k]) for k in _MILLISECONDS))
            for s in swaps
        ),
    )


_MILLISECONDS = ("pause_ms", "total_ms", "converged_ms")


def _answers(answers: list[dict]) -> str:
    def said(side: dict) -> str:
        return f"<q>{_text(side['text'])}</q> <small>{side['acceptance']:.2f}</small>"

    rows = "".join(
        f"<tr><td>{_text(a['question'])}</td><td>{said(a['before'])}</td><td>{said(a['after'])}</td></tr>"
        for a in answers
    )
    return f"<table><tr><th>question</th><th>before</th><th>after</th></tr>{rows}</table>"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + f"</tr>{lines}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"<td class=n>{value}</td>"
    text = _text(value)
    return f'<td class="{text}">{text}</td>' if text in _OUTCOMES else f"<td>{text}</td>"


_OUTCOMES = frozenset(Outcome)


def _text(value: object) -> str:
    return escape(str(value))
