"""The report a person decides by: one HTML file that needs nothing else.

The decision and its reasons, the interval, plots (paired differences, distribution of the target, guards) as
embedded PNG, every guard line, and the answers of both versions side by side. What models wrote is escaped and
shown as text. Figures are made without pyplot: no global state in a worker that stays.
"""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evaluation.sampling import Answer
from evaluation.statistics import Paired, Values
from evaluation.suites import Question
from ingest.contracts.verdict import Verdict

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;width:100%;margin:1em 0}td,th{border-bottom:1px solid #ddd;padding:.35em .6em;
text-align:left;vertical-align:top}img{max-width:100%}.promote{color:#176d2c}.reject{color:#a3161b}
.hold,.canary{color:#8a5a00}.failed{background:#fde8e8}.n{text-align:right;font-variant-numeric:tabular-nums}
li{white-space:pre-wrap;overflow-wrap:anywhere}small{color:#777}
"""


@dataclass(frozen=True)
class Scored:
    """All that was sampled from one version: answers by question, and their values [questions, answers] if any."""

    answers: list[list[Answer]]
    values: Values | None


def _png(figure: Figure, caption: str) -> str:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    data = base64.b64encode(buffer.getvalue()).decode()
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _plot_differences(interval: Paired) -> str:
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.add_subplot()
    ordered = np.sort(interval.differences)
    axes.bar(range(len(ordered)), ordered, color=["#2f8f4e" if d > 0 else "#c0392b" for d in ordered])
    axes.axhspan(interval.low, interval.high, color="#4063d8", alpha=0.18, label="interval of the mean")
    axes.axhline(interval.difference, color="#4063d8")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="question, from worst to best", ylabel="challenger - champion")
    axes.legend(loc="upper left")
    return _png(figure, "Paired differences by question")


def _plot_target(champion: Values, challenger: Values) -> str:
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.add_subplot()
    bins = np.linspace(0, 1, 21).tolist()
    axes.hist([champion.ravel(), challenger.ravel()], bins=bins, label=["champion", "challenger"])
    axes.set(xlabel="target of one answer", ylabel="answers")
    axes.legend()
    return _png(figure, "Distribution of the target over answers")


def _plot_guards(verdict: Verdict) -> str:
    shares = [g for g in verdict.guards if not g.name.startswith(("shortest", "longest"))]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    at = np.arange(len(shares))
    axes.bar(at - 0.2, [g.champion for g in shares], 0.4, label="compared with", color="#999999")
    axes.bar(at + 0.2, [g.challenger for g in shares], 0.4, label="challenger", color="#4063d8")
    axes.scatter(at + 0.2, [g.bound for g in shares], marker="_", s=300, color="#c0392b", label="bound", zorder=3)
    axes.set_xticks(at, [g.name for g in shares], rotation=35, ha="right")
    axes.set(ylabel="share of answers")
    axes.legend()
    return _png(figure, "Guards: shares, against the champion and against the anchor")


def _guard_rows(verdict: Verdict) -> str:
    return "".join(
        f'<tr class="{"" if g.passed else "failed"}"><td>{html.escape(g.name)}</td><td class="n">{g.champion:.3f}</td>'
        f'<td class="n">{g.challenger:.3f}</td><td class="n">{g.bound:.3f}</td>'
        f"<td>{'held' if g.passed else 'failed'}</td></tr>"
        for g in verdict.guards
    )


def _answers(scored: Scored, row: int) -> str:
    items = []
    for column, answer in enumerate(scored.answers[row]):
        value = "" if scored.values is None else f" <small>{scored.values[row, column]:.2f}</small>"
        items.append(f"<li>{html.escape(answer.text)} <small>({html.escape(answer.finish)})</small>{value}</li>")
    return f"<ol>{''.join(items)}</ol>"


def render(
    verdict: Verdict, interval: Paired | None, questions: Sequence[Question], champion: Scored, challenger: Scored
) -> str:
    """The report as one HTML document."""
    order = range(len(questions)) if interval is None else np.argsort(interval.differences, kind="stable").tolist()
    side_by_side = "".join(
        f"<tr><td>{html.escape(questions[i].text)}</td><td>{_answers(champion, i)}</td>"
        f"<td>{_answers(challenger, i)}</td></tr>"
        for i in order
    )
    plots = _plot_guards(verdict)
    if interval is not None and champion.values is not None and challenger.values is not None:
        plots = _plot_differences(interval) + _plot_target(champion.values, challenger.values) + plots
    title = f"{html.escape(verdict.challenger)} against {html.escape(verdict.champion)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>
<h1>{title}: <span class="{verdict.decision}">{verdict.decision}</span></h1>
<ul>{"".join(f"<li>{html.escape(r)}</li>" for r in verdict.reasons)}</ul>
<table><tr><th>policy</th><th>target</th><th>champion</th><th>challenger</th><th>difference</th><th>interval</th>
<th>confidence</th><th>questions</th><th>samples</th><th>look</th></tr>
<tr><td>{html.escape(verdict.policy)}</td><td>{html.escape(verdict.target or "none")}</td>
<td>{verdict.champion_mean:.3f}</td><td>{verdict.challenger_mean:.3f}</td><td>{verdict.difference:+.3f}</td>
<td>{verdict.low:+.3f} to {verdict.high:+.3f}</td><td>{verdict.confidence:.2%} one-sided</td>
<td>{verdict.questions}</td><td>{verdict.samples}</td><td>{verdict.look}</td></tr></table>
{plots}
<h2>Guards</h2>
<table><tr><th>guard</th><th>compared with</th><th>challenger</th><th>bound</th><th></th></tr>
{_guard_rows(verdict)}</table>
<h2>Answers side by side</h2><p>From the question on which the challenger lost most to the one on which it won most.</p>
<table><tr><th>question</th><th>champion</th><th>challenger</th></tr>{side_by_side}</table>
</body></html>
"""
