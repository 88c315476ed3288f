"""Figures, on matplotlib. Every function returns the figure that it has drawn: a new one, or that of the axes given.

No function opens a window or has a part in the state of pyplot. A notebook shows a figure that is the last value of a cell; `save`
writes it to files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from isochrome._isochrome import TaskSet
from isochrome.types import Response

#: Tells lines apart without color, too.
MARKERS = "os^vD<>ph"
DASHES = ("-", "--", ":", "-.")


def _axes(ax: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    """`ax`, or the axes of a new figure of `width` x `height` inches."""
    # A figure of its own, not pyplot's: nothing global, no window, no memory kept.
    return Figure(figsize=(width, height), layout="constrained").subplots() if ax is None else ax


def _figure(ax: Axes) -> Figure:
    figure = ax.figure.get_figure(root=True)
    assert figure is not None, "axes are in a figure"
    return figure


def _legend(ax: Axes) -> None:
    # Beside the axes: lines are everywhere.
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG and as PNG of 150 dots per inch: `path` with these endings. The same figure gives the same bytes."""
    from isochrome.sweep import write

    with matplotlib.rc_context({"svg.hashsalt": "isochrome", "svg.fonttype": "none"}):
        write(path.with_suffix(".svg"), lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
        write(path.with_suffix(".png"), lambda file: figure.savefig(file, format="png", dpi=150, metadata={"Software": None}))


def wcet_curves(task_set: TaskSet, *, ax: Axes | None = None) -> Figure:
    """Execution time of every task against its number of partitions, 1 to all, as a share (0 to 1) of that with one. [Kim2013, Figure 10]

    >>> tasks = {"name": "fft", "period_ns": 10_000, "memory_mib": 1, "wcet_ns": [4000, 3000, 2500, 2400]}
    >>> one = isochrome.TaskSet({"tasks": [tasks]}, cores=1, partitions=4, memory_mib=64, refill_ns=0)
    >>> curves = plot.wcet_curves(one)
    >>> curves.axes[0].get_xlabel(), [line.get_label() for line in curves.axes[0].lines]
    ('partitions', ['fft'])
    """
    ax = _axes(ax)
    curves = task_set.wcet_ns().astype(float)
    partitions = np.arange(1, curves.shape[1] + 1)
    for number, (name, curve) in enumerate(zip(task_set.names, curves, strict=True)):
        ax.plot(partitions, curve / curve[0], marker=MARKERS[number % len(MARKERS)], markersize=3, label=name)
    ax.set(xlabel="partitions", ylabel="execution time, of that with 1 partition", ylim=(0, 1.05))
    ax.legend()
    return _figure(ax)


def response_times(
    responses: Sequence[Response], *, observed_max_ns: Mapping[str, int] | None = None, ax: Axes | None = None
) -> Figure:
    """The parts of the bound of every task and its deadline, in ms, and the longest response seen if it is given.

    `responses`: of `isochrome.response_times`, drawn from the top. `observed_max_ns`: the longest response seen of tasks, by name, in ns.
    """
    ax = _axes(ax)
    names = [response["name"] for response in responses]
    left = np.zeros(len(names))
    parts = ("own", "interference", "omega", "gamma", "blocking", "jitter")
    for part in parts:
        width = np.array([response[f"{part}_ns"] / 1e6 for response in responses])  # type: ignore[literal-required]
        if width.any():
            ax.barh(names, width, left=left, label=part)
        left += width
    deadlines = [response["deadline_ns"] / 1e6 for response in responses]
    ax.plot(deadlines, names, "k|", markersize=14, label="deadline")
    if observed_max_ns:
        seen = [name for name in names if name in observed_max_ns]
        ax.plot([observed_max_ns[name] / 1e6 for name in seen], seen, "kx", label="longest seen")
    ax.set(xlabel="ms", xlim=(0, None))
    ax.invert_yaxis()
    ax.legend()
    return _figure(ax)


def schedulability(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: str = "ratio", ax: Axes | None = None
) -> Figure:
    """Share of task sets that are schedulable, with 95 % intervals where rows have `low` and `high`.

    `rows`: as in `summary` and `weighted` of a sweep. `x`, `y`: the keys of both axes; `y` is a share, 0 to 1. The rows of a
    line are equal in all keys but `x` and results. One of these keys must be `by`, the analysis or method.
    """
    ax = _axes(ax, 9.0)
    results = {"point", "sets", "schedulable", "ratio", "low", "high", "weighted", x}
    lines: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row[y] is not None:
            lines.setdefault(tuple((name, value) for name, value in row.items() if name not in results), []).append(row)
    # One color for each analysis or method, one dash for each combination of the rest.
    by = list(dict.fromkeys(dict(key)["by"] for key in lines))
    rest = list(dict.fromkeys(key[:-1] for key in lines))
    for key, line in lines.items():
        label = ", ".join(str(value) if name == "by" else f"{name} {value}" for name, value in key)
        line = sorted(line, key=lambda row: row[x])
        at = [row[x] for row in line]
        number, dash = by.index(dict(key)["by"]), DASHES[rest.index(key[:-1]) % len(DASHES)]
        color, marker = f"C{number}", MARKERS[number % len(MARKERS)]
        ax.plot(at, [row[y] for row in line], color=color, marker=marker, linestyle=dash, markersize=4, label=label)
        if "low" in line[0]:
            ax.fill_between(at, [r["low"] for r in line], [r["high"] for r in line], color=color, alpha=0.15, lw=0)
    ax.set(xlabel=x.replace("_", " "), ylabel="weighted schedulability" if y == "weighted" else "schedulable sets, of all", ylim=(0, 1.02))
    _legend(ax)
    return _figure(ax)


def color_heat_map(eviction: ArrayLike, *, ax: Axes | None = None) -> Figure:
    """Share of a page of one color that the pages of another color evict.

    `eviction`: colors x colors; row i, column j has the share, 0 to 1, of a page of color i that pages of color j evict.

    >>> plot.color_heat_map([[1.0, 0.0], [0.0, 1.0]]).axes[0].get_xlabel()
    'color of the evicting pages'
    """
    ax = _axes(ax, 5.0, 4.2)
    image = ax.imshow(np.asarray(eviction, dtype=float), vmin=0, vmax=1, cmap="magma")
    ax.figure.colorbar(image, ax=ax, label="share evicted")
    ax.set(xlabel="color of the evicting pages", ylabel="color of the page")
    return _figure(ax)


def crpd_curve(working_set_bytes: ArrayLike, delay_ns: ArrayLike, *, label: str = "", ax: Axes | None = None) -> Figure:
    """Preemption delay in us against the memory in KiB that a task works on. [Sebek2002]

    `working_set_bytes`, `delay_ns`: one number each for every point, in bytes and ns. `label`: what a legend calls the line; without it
    there is no legend.
    """
    ax = _axes(ax)
    ax.plot(np.asarray(working_set_bytes) / 1024, np.asarray(delay_ns) / 1e3, marker="o", markersize=3, label=label)
    ax.set_xscale("log", base=2)
    ax.set(xlabel="working set, KiB", ylabel="preemption delay, us", ylim=(0, None))
    if label:
        ax.legend()
    return _figure(ax)


#: What methods are compared by, as axes call it.
COMPARED = {
    "share": "fewest partitions, of all",
    "memory_used": "memory used of the fewest partitions",
    "least": "least utilization with all partitions",
}


def methods(comparisons: Sequence[Mapping[str, Any]], *, value: str = "share", ax: Axes | None = None) -> Figure:
    """Result of each method for each task set, whose label has its tasks and memory. [Kim2013, Figures 14 to 16]

    `comparisons`: of `Comparison.to_dict`, one for each group of bars. `value`: `share`, the fewest partitions as a share of all;
    `memory_used`, the share of their memory that is used; or `least`, the least utilization with all partitions.
    """
    ax = _axes(ax, 9.0)
    names = [compared["method"] for compared in comparisons[0]["methods"]]
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        values = [next(m[value] for m in c["methods"] if m["method"] == name) for c in comparisons]
        at = np.arange(len(comparisons)) + (number - (len(names) - 1) / 2) * width
        ax.bar(at, [found or 0 for found in values], width, label=name)
        for place, found in zip(at, values, strict=True):
            if found is None:
                ax.text(place, 0.01, "none", rotation=90, ha="center", va="bottom")
    labels = [f"{c['tasks']} tasks\n{c['memory'] >> 20} MiB" for c in comparisons]
    ax.set_xticks(range(len(comparisons)), labels)
    ax.set_ylabel(COMPARED[value])
    _legend(ax)
    return _figure(ax)
