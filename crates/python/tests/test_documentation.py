"""Tests of the documentation: every public name has a docstring, examples print what they say, and everything passes mypy --strict."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import isochrome
import nbformat
import numpy as np
import pytest
from isochrome import plot

CRATE = Path(__file__).resolve().parents[1]
REPOSITORY = CRATE.parents[1]
PAGE = REPOSITORY / "docs/how-to/sweeps.md"
NOTEBOOK = REPOSITORY / "docs/tutorials/tutorial.ipynb"
#: What every example may use.
GIVEN = "import isochrome\nimport numpy as np\nfrom isochrome import plot\n"


def public_modules():
    names = [module.name for module in pkgutil.iter_modules(isochrome.__path__) if not module.name.startswith("_")]
    return [isochrome, *(importlib.import_module(f"isochrome.{name}") for name in names)]


def public_names():
    """Every public name of the package, of its modules and of their classes, with its object."""
    for module in public_modules():
        yield module.__name__, module
        names = module.__all__ if hasattr(module, "__all__") else [
            name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
        ]
        for name in names:
            value = getattr(module, name)
            yield f"{module.__name__}.{name}", value
            for member in vars(value) if inspect.isclass(value) else ():
                part = inspect.getattr_static(value, member)
                if not member.startswith("_") and (callable(part) or hasattr(part, "__func__") or inspect.isdatadescriptor(part)):
                    yield f"{module.__name__}.{name}.{member}", getattr(value, member)


NAMES = {name: value for name, value in public_names() if not isinstance(value, str)}


def examples():
    """The examples of docstrings, by the name that they explain. A docstring in Rust has them between fences."""
    parser = doctest.DocTestParser()
    for name, value in NAMES.items():
        text = re.sub(r"^ *```.*$", "", inspect.getdoc(value) or "", flags=re.MULTILINE)
        if found := parser.get_examples(text):
            yield name, found


def blocks():
    """The blocks of Python on the page."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def stubs():
    """Every function of the native module as its stub declares it, with its public name."""
    for node in ast.parse((CRATE / "python/isochrome/_isochrome.pyi").read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in members:
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                yield f"isochrome.{node.name}.{function.name}" if function is not node else f"isochrome.{function.name}", function


def test_every_public_name_has_a_docstring():
    assert {"isochrome.Machine.named", "isochrome.TaskSet.names", "isochrome.plot.save", "isochrome.sweep.main"} < set(NAMES)
    inherited = {value.__doc__ for value in (dict, ValueError, object)}
    missing = [name for name, value in NAMES.items() if not (value.__doc__ or "").strip() or value.__doc__ in inherited]
    # A dataclass without a docstring gets one that only repeats its fields.
    missing += [name for name, value in NAMES.items() if inspect.isclass(value) and (value.__doc__ or "").startswith(f"{value.__name__}(")]
    assert not missing


def test_docstrings_name_every_array_and_its_unit_or_shape():
    says_shape = re.compile(r"\b(array|arrays|dimension|one number|one bool|one element| x |of the same length)\b|tasks x|sets x|colors x")
    for name, function in stubs():
        if name not in NAMES:
            continue
        text = " ".join((NAMES[name].__doc__ or "").split())
        arguments = {one.arg: ast.unparse(one.annotation) for one in function.args.args + function.args.kwonlyargs if one.annotation}
        for argument, kind in arguments.items():
            if "ArrayLike" in kind or "NDArray" in kind:
                assert f"`{argument}`" in text, f"{name}: {argument} is an array that the docstring does not explain"
        if any("Array" in kind for kind in [*arguments.values(), ast.unparse(function.returns)]):
            assert says_shape.search(text), f"{name}: no shape in {text}"


@pytest.mark.parametrize(("name", "found"), list(examples()), ids=lambda value: value if isinstance(value, str) else "")
def test_examples_in_docstrings_print_what_they_say(name, found):
    given = {"isochrome": isochrome, "np": np, "plot": plot}
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTest(found, given, name, None, None, None), out=said.append)
    assert not runner.failures, "".join(said)


def test_blocks_of_the_page_run(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    # Examples for a cluster need one.
    here = [block for block in blocks() if "dask_" not in block]
    assert here and len(here) < len(blocks())
    given = {}
    for block in here:
        exec(compile(block, str(PAGE), "exec"), given)


def code_of_notebook():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return {"notebook": "\n".join(cell.source for cell in cells if cell.cell_type == "code")}


def code_of_page():
    code = {"page": "\n".join(block for block in blocks() if "dask_" not in block)}
    return code | {f"cluster_{i}": block for i, block in enumerate(blocks()) if "dask_" in block}


def code_of_docstrings():
    return {f"example_{name.replace('.', '_')}": GIVEN + "".join(one.source for one in found) for name, found in examples()}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder that all runs of mypy share."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize(("code", "least"), [(code_of_notebook, 1), (code_of_page, 3), (code_of_docstrings, 12)])
def test_everything_documented_passes_mypy_strict(tmp_path, cache, code, least):
    sources = code()
    assert len(sources) >= least
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    # The installed package is checked, because the code of users is checked against it.
    found = mypy(cache, *(str(path) for path in sorted(tmp_path.glob("*.py"))))
    assert found.returncode == 0, found.stdout + found.stderr


def test_code_that_uses_a_frame_as_a_number_does_not_pass(tmp_path, cache):
    (tmp_path / "wrong.py").write_text(GIVEN + "rows: int = isochrome.Evidence('x').to_polars()\n")
    found = mypy(cache, str(tmp_path / "wrong.py"))
    assert found.returncode == 1 and "Incompatible types in assignment" in found.stdout


def test_the_package_and_its_stubs_pass_mypy_strict(tmp_path, cache):
    stubtest = [sys.executable, "-m", "mypy.stubtest", "isochrome._isochrome", "--ignore-disjoint-bases"]
    found = subprocess.run(stubtest, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    # The sources: what is installed mypy takes for somebody else's.
    found = mypy(cache, "python/isochrome")
    assert found.returncode == 0, found.stdout + found.stderr


def mypy(cache, *paths):
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", "--cache-dir", str(cache), *paths]
    return subprocess.run(command, capture_output=True, text=True, cwd=CRATE)
