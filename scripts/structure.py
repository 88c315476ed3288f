#!/usr/bin/env python3
"""Checks the structure of the workspace: the dependencies of crates and files, the places of unsafe code, and the length of files.

    scripts/structure.py          prints what breaks a rule; exit code 0 if nothing does, else 1

The rules:
  - A crate depends on the crates below it only (ALLOWED; what only tests need may come from any crate).
  - No circle of files in different folders of a crate: where one file uses names of another, which uses names of the first, perhaps
    through further files, all of them are in one folder. A `foo.rs` beside a folder `foo` is part of that folder. What only tests use
    does not count.
  - Unsafe code is denied to every crate, and allowed again in the files of UNSAFE only.
  - No Rust file is longer than LINES_MAX lines. That no function is too long is checked by clippy (`too_many_lines`).
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

ALLOWED = {
    "model": set(),
    "report": {"model"},
    "host": {"model"},
    "lab": {"host", "model"},
    "cli": {"lab", "host", "report", "model"},
    "c": {"host", "model"},
    "python": {"report", "model"},
}

UNSAFE = {"crates/host/src/sys/mod.rs", "crates/c/src/lib.rs"}

LINES_MAX = 600

DECLARED = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?mod (\w+);", re.MULTILINE)
USE = re.compile(r"^[ \t]*((?:pub(?:\([^)]*\))? )?)use ([^;]+);", re.MULTILINE)
PATH = re.compile(r"(?<![\w:])(\w+)((?:::\w+)+)")
DEFINED = r"\b(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!) {}\b"


def rust_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.rs"))


def relative(path):
    return path.relative_to(ROOT).as_posix()


def directions():
    """Yields every dependency of a crate on one that is not below it."""
    for manifest in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        crate, content = manifest.parent.name, tomllib.loads(manifest.read_text())
        if crate not in ALLOWED:
            yield f"crates/{crate}: not in the list of {relative(pathlib.Path(__file__).resolve())}"
            continue
        tables = [content, *content.get("target", {}).values()]
        needed = {name for table in tables for kind in ("dependencies", "build-dependencies") for name in table.get(kind, {})}
        for other in sorted(needed):
            if other.startswith("isochrome-") and (other := other.removeprefix("isochrome-")) not in ALLOWED[crate]:
                yield f"crates/{crate}: depends on {other}, which is not below it"


def unsafe_code():
    """Yields every place that may hold unsafe code and should not."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())
    if workspace["workspace"]["lints"]["rust"].get("unsafe_code") not in ("deny", "forbid"):
        yield "Cargo.toml: the lints of the workspace do not deny unsafe code"
    for manifest in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        if not tomllib.loads(manifest.read_text()).get("lints", {}).get("workspace"):
            yield f"{relative(manifest)}: does not take the lints of the workspace"
    for path in rust_files("crates", "examples"):
        if re.search(r"(?:allow|expect|warn)\([^)]*\bunsafe_code\b", path.read_text()) and relative(path) not in UNSAFE:
            yield f"{relative(path)}: allows unsafe code"


def lengths():
    """Yields every file that is too long."""
    for path in rust_files("crates", "examples", "fuzz/fuzz_targets"):
        lines = path.read_text().count("\n")
        if lines > LINES_MAX:
            yield f"{relative(path)}: {lines} lines, {LINES_MAX} at most"


def without_tests(text):
    """Returns the code without comments, strings and items that only tests compile."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    kept, lines, at = [], text.split("\n"), 0
    while at < len(lines):
        if not lines[at].strip().startswith(("#[cfg(test)]", "#[cfg(all(test")):
            kept.append(lines[at])
            at += 1
            continue
        # The item behind it ends at a semicolon, or at the brace in the column in which it begins.
        while lines[at].strip().startswith("#["):
            at += 1
        indent = re.match(r"\s*", lines[at])[0]
        while not re.match(rf"{indent}(?:\}}|\S.*[;}}]$)", lines[at]):
            at += 1
        at += 1
    return "\n".join(kept)


def split_tree(tree):
    """Yields the paths of a use declaration, as lists of names: `a::{b, c::d as e}` is a b and a c d."""
    tree = tree.strip()
    if match := re.fullmatch(r"(?:(.*?)::)?\{(.*)\}", tree, re.DOTALL):
        head = match[1].split("::") if match[1] else []
        depth, part = 0, ""
        for letter in match[2] + ",":
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth == 0:
                for rest in split_tree(part):
                    yield head + rest
                part = ""
            else:
                part += letter
    elif tree:
        yield [name.strip() for name in re.sub(r"\s+as\s+\w+$", "", tree).split("::")]


class Crate:
    """The modules of a crate: which file each is, what it hands on, and which files a file uses."""

    def __init__(self, source):
        self.files = {}
        self.texts = {}
        root = next(path for path in (source / "lib.rs", source / "main.rs") if path.exists())
        self.read((), root, source)

    def read(self, module, path, folder):
        self.files[module] = path
        self.texts[module] = text = without_tests(path.read_text())
        for name in DECLARED.findall(text):
            child = next((file for file in (folder / f"{name}.rs", folder / name / "mod.rs") if file.exists()), None)
            if child is not None:
                self.read((*module, name), child, folder / name)

    def uses(self, module):
        """Yields whether it is handed on, and the whole path, for every use declaration of a module."""
        for match in USE.finditer(self.texts[module]):
            for names in split_tree(match[2]):
                if (path := self.whole(module, names)) is not None:
                    yield bool(match[1]), path

    def whole(self, module, names):
        """Returns the path from the root of the crate; `None` for one that leads to another crate."""
        if names[0] == "crate":
            return tuple(names[1:])
        if names[0] == "self":
            return (*module, *names[1:])
        at = module
        while names and names[0] == "super":
            at, names = at[:-1], names[1:]
        return (*at, *names) if at != module or (*module, *names[:1]) in self.files else None

    def home(self, path, depth=0):
        """Returns the module that defines what a path names, through the modules that only hand it on."""
        module = next(path[:size] for size in range(len(path), -1, -1) if path[:size] in self.files)
        rest = path[len(module) :]
        if not rest or rest[0] == "*" or depth > 8 or re.search(DEFINED.format(re.escape(rest[0])), self.texts[module]):
            return module
        for handed_on, other in self.uses(module):
            if handed_on and other and other[-1] == rest[0]:
                return self.home((*other, *rest[1:]), depth + 1)
            if handed_on and other and other[-1] == "*":
                found = self.home((*other[:-1], *rest), depth + 1)
                if re.search(DEFINED.format(re.escape(rest[0])), self.texts[found]):
                    return found
        return module

    def arrows(self):
        """Returns, for every module, the modules whose names it uses."""
        arrows = {}
        for module, text in self.texts.items():
            found = [path for handed_on, path in self.uses(module) if not handed_on]
            for first, rest in PATH.findall(USE.sub("", text)):
                path = self.whole(module, [first, *rest.split("::")[1:]])
                if path is not None:
                    found.append(path)
            arrows[module] = {self.home(path) for path in found} - {module}
        return arrows

    def folder(self, module):
        path = self.files[module]
        inner = path.with_suffix("")
        return inner if inner.is_dir() else path.parent


def components(arrows):
    """Returns the strongly connected components of a graph (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            found.append(set(stack[cut:]))
            del stack[cut:]

    for node in arrows:
        if node not in index:
            visit(node)
    return found


def circles():
    """Yields every circle of files that are not all in one folder, with the arrows that make it."""
    sys.setrecursionlimit(10_000)
    for name in sorted(ALLOWED):
        crate = Crate(ROOT / "crates" / name / "src")
        arrows = crate.arrows()
        for circle in components(arrows):
            if len({crate.folder(module) for module in circle}) > 1:
                lines = [
                    f"\n    {relative(crate.files[module])} uses {relative(crate.files[other])}"
                    for module in sorted(circle)
                    for other in sorted(arrows[module] & circle)
                ]
                yield f"crates/{name}: a circle of files in different folders{''.join(lines)}"


def main():
    broken = [line for rule in (directions, unsafe_code, lengths, circles) for line in rule()]
    print("\n".join(broken or ["the structure is as it should be"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
