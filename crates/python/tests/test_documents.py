"""Figures, the tutorial, and what a wheel installs."""

import importlib.metadata
import subprocess
import sys

import isochrome
import matplotlib
import nbclient
import nbformat
import numpy as np
import pytest
from isochrome import plot
from matplotlib.figure import Figure


@pytest.fixture
def draw(repository):
    """A drawing of each kind."""
    task_set = isochrome.TaskSet.from_file(repository / "examples/kim2013-table1.json", cores=4, memory_mib=1024)
    responses = isochrome.response_times(task_set, isochrome.plan(task_set, method="cata"))
    rows = [
        {"utilization": u, "by": "cata", "ratio": 1 - u, "low": 0.9 - u, "high": 1.0 - u / 2} for u in (0.3, 0.5, 0.7)
    ]
    comparison = isochrome.compare(task_set, checks_limit=10).to_dict()
    return {
        "wcet_curves": lambda **ax: plot.wcet_curves(task_set, **ax),
        "response_times": lambda **ax: plot.response_times(responses, observed_max_ns={"p_ferret": 1_000_000}, **ax),
        "schedulability": lambda **ax: plot.schedulability(rows, x="utilization", **ax),
        "color_heat_map": lambda **ax: plot.color_heat_map(np.eye(4), **ax),
        "crpd_curve": lambda **ax: plot.crpd_curve([1024, 2048, 4096], [10, 20, 40], label="fft", **ax),
        "methods": lambda **ax: plot.methods([comparison], value="least", **ax),
    }


def test_every_figure_can_be_drawn_and_saved_to_the_same_bytes(draw, tmp_path):
    for name, figure in draw.items():
        plot.save(figure(), tmp_path / name)
        first = [(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")]
        plot.save(figure(), tmp_path / name)
        assert first == [(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")], name
        assert b"<svg" in first[0] and first[1].startswith(b"\x89PNG")


def test_every_function_that_draws_returns_a_figure_and_leaves_pyplot_alone(draw, monkeypatch):
    drawing = {name for name, value in vars(plot).items() if not name.startswith("_") and getattr(value, "__module__", "") == plot.__name__}
    assert set(draw) == drawing - {"save"}
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda *_, **__: pytest.fail("a window was opened"))
    before, settings = pyplot.get_fignums(), dict(matplotlib.rcParams)
    for name, figure in draw.items():
        drawn = figure()
        assert isinstance(drawn, Figure) and drawn.axes, name
        # On axes that are given, the figure is theirs.
        given = Figure()
        assert figure(ax=given.subplots()) is given, name
    assert pyplot.get_fignums() == before and dict(matplotlib.rcParams) == settings


def test_drawing_does_not_load_pyplot():
    code = "import sys; from isochrome import plot; plot.color_heat_map([[1]]); sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_tutorial_runs(repository):
    path = repository / "docs/tutorials/tutorial.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": repository}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_the_package_installs_isochrome_sweep_and_nothing_called_isochrome():
    installed = importlib.metadata.distribution("isochrome")
    commands = [entry for entry in installed.entry_points if entry.group == "console_scripts"]
    assert [entry.name for entry in commands] == ["isochrome-sweep"]
    files = [file for file in installed.files or () if "bin" in file.parts or "Scripts" in file.parts]
    assert [file.name for file in files] == ["isochrome-sweep"]


def test_the_command_says_what_is_wrong_and_its_module_has_the_one_verb(tmp_path):
    file = tmp_path / "absent.toml"
    for command in (["isochrome.sweep", "main()"], ["isochrome.__main__", "main(['sweep', *sys.argv[1:]])"]):
        code = f"import sys; from {command[0]} import main; sys.exit({command[1]})"
        output = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
        assert output.returncode == 1 and "absent.toml" in output.stderr, output
    output = subprocess.run([sys.executable, "-m", "isochrome", "probe"], capture_output=True, text=True)
    assert output.returncode == 1 and "hint:" in output.stderr
