"""Histograms as a picture."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ingest.profiles import Histogram

KINDS = (".png", ".svg", ".pdf")
_INK, _BAR = "#333333", "#3b6ea5"


def draw(title: str, histograms: tuple[Histogram, ...], path: Path) -> None:
    """The histograms below one another, bars from the left. The kind of file is its suffix, one of `KINDS`."""
    lines = [max(1, len(histogram.labels)) for histogram in histograms]
    figure = Figure(figsize=(8, 0.26 * sum(lines) + 0.75 * len(lines) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK)
    axes = figure.subplots(len(histograms), 1, squeeze=False, height_ratios=lines)[:, 0]
    for axis, histogram in zip(axes, histograms, strict=True):
        places = range(len(histogram.labels))
        bars = axis.barh(places, histogram.counts, color=_BAR, height=0.8)
        axis.bar_label(bars, labels=[f"{count:,}" for count in histogram.counts], padding=3, fontsize=8, color=_INK)
        axis.set_yticks(places, histogram.labels, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{histogram.name} ({histogram.unit})", loc="left", fontsize=9, color=_INK)
        axis.set_xticks([])
        axis.set_xlim(0, 1.1 * max((1, *histogram.counts)))
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.tick_params(length=0, colors=_INK)
    figure.savefig(path, dpi=150)
