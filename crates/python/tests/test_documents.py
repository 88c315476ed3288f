"""Types, figures and the tutorial."""

import subprocess
import sys
from pathlib import Path

import isochrome
import nbclient
import nbformat
import numpy as np
from isochrome import plot


def test_stubs_are_what_the_module_has_and_the_package_is_typed(tmp_path):
    stubtest = [sys.executable, "-m", "mypy.stubtest", "isochrome._isochrome", "--ignore-disjoint-bases"]
    found = subprocess.run(stubtest, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    # The sources: what is installed mypy takes for somebody else's.
    crate = Path(__file__).parents[1]
    mypy = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), "python/isochrome"]
    found = subprocess.run(mypy, capture_output=True, text=True, cwd=crate)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_figure_can_be_drawn_and_saved_to_the_same_bytes(repository, tmp_path):
    task_set = isochrome.TaskSet.from_file(repository / "examples/kim2013-table1.json", cores=4, memory_mib=1024)
    responses = isochrome.response_times(task_set, isochrome.plan(task_set, method="cata"))
    rows = [
        {"utilization": u, "by": "cata", "ratio": 1 - u, "low": 0.9 - u, "high": 1.0 - u / 2} for u in (0.3, 0.5, 0.7)
    ]
    comparison = isochrome.compare(task_set, checks_limit=10).to_dict()
    draw = {
        "curves": lambda: plot.wcet_curves(task_set),
        "responses": lambda: plot.response_times(responses, observed_max_ns={"p_ferret": 1_000_000}),
        "ratio": lambda: plot.schedulability(rows, x="utilization"),
        "colors": lambda: plot.color_heat_map(np.eye(4)),
        "crpd": lambda: plot.crpd_curve([1024, 2048, 4096], [10, 20, 40], label="fft"),
        "methods": lambda: plot.methods([comparison], value="least"),
    }
    for name, figure in draw.items():
        plot.save(figure(), tmp_path / name)
        first = [(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")]
        plot.save(figure(), tmp_path / name)
        assert first == [(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")], name
        assert b"<svg" in first[0] and first[1].startswith(b"\x89PNG")


def test_the_tutorial_runs(repository):
    path = repository / "docs/tutorials/tutorial.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": repository}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
