#!/usr/bin/env python3
"""Collects the licenses of all packages that are linked into installed files of isochrome: `make licenses`.

    scripts/licenses.py             writes packaging/THIRD-PARTY.txt
    scripts/licenses.py --check     says whether that file is what would be written; exit code 1 if it is not

The packages are those that `cargo metadata` finds behind the command, the library for C and the Python package, on Linux, tests and build scripts
left out. Of a package that may be used under Apache-2.0, that license is taken, because its text is the same for all; of any other one, the texts
that the package comes with. One that comes without any is an error: somebody has to look.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "packaging/THIRD-PARTY.txt"
ROOTS = ["isochrome-cli", "isochrome-c", "isochrome-python"]
TARGETS = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
TEXTS = re.compile(r"LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE", re.IGNORECASE)
# Files that Apache-2.0 requires to be handed on besides its own text.
NOTICES = re.compile(r"NOTICE", re.IGNORECASE)
RULE = "=" * 100

# Software that comes with the toolchain, and not as a package.
TOOLCHAIN = """\
Rust's standard library, by the Rust project's contributors: MIT OR Apache-2.0
    https://github.com/rust-lang/rust
LLVM's libunwind, in the statically linked program: Apache-2.0 WITH LLVM-exception
    https://llvm.org
musl, in the statically linked program: MIT
    https://musl.libc.org
"""
MUSL = """\
Copyright (c) 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def linked(target):
    """The packages of other people that are linked for a target: id -> record."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    reached = set()
    ahead = [id for id, package in packages.items() if package["name"] in ROOTS]
    while ahead:
        id = ahead.pop()
        if id in reached:
            continue
        reached.add(id)
        for needed in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in needed["dep_kinds"]):
                ahead.append(needed["pkg"])
    return {id: packages[id] for id in reached if packages[id]["source"]}


def texts(package):
    """The texts of a package that are handed on, by the license that is taken; `None` for those that have Apache-2.0 and nothing else."""
    apache = "Apache-2.0" in re.split(r" OR |/", package["license"])
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and (NOTICES if apache else TEXTS).match(path.name))
    if apache and not files:
        return None
    if not files:
        raise SystemExit(f"licenses.py: {package['name']} {package['version']} ({package['license']}) comes without the text of its license")
    return "\n".join(path.read_text(errors="replace").replace("\r\n", "\n").replace("\ufeff", "").strip("\n") + "\n" for path in files)


def document():
    packages = {}
    for target in TARGETS:
        packages |= linked(target)
    ordered = sorted(packages.values(), key=lambda package: (package["name"], package["version"]))
    users = defaultdict(list)
    lines = ["Software of others in what isochrome installs, and its licenses. Written by `make licenses`.\n", TOOLCHAIN]
    for package in ordered:
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}: {package['license']}\n    {package['repository'] or package['homepage'] or 'https://crates.io/crates/' + package['name']}\n")
        users[texts(package)].append(name)
    apache = users.pop(None)
    lines.append(f"\n{RULE}\nApache License 2.0, under which these are used: Rust's standard library, {', '.join(apache)}\n\n")
    lines.append((ROOT / "LICENSE-APACHE").read_text())
    lines.append(f"\n{RULE}\nmusl\n\n{MUSL}")
    for text, names in sorted(users.items(), key=lambda item: item[1]):
        lines.append(f"\n{RULE}\n{', '.join(names)}\n\n{text}")
    return "".join(lines)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 1
    written = document()
    if sys.argv[1:]:
        if not FILE.exists() or FILE.read_text() != written:
            print(f"licenses.py: {FILE.relative_to(ROOT)} is not what the dependencies say\n  hint: make licenses", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
