#!/usr/bin/env python3
"""Checks what has to hold before a release, and prints a table of it: `make release-check`.

    scripts/release_check.py                              everything; the two builds take a quarter of an hour
    scripts/release_check.py --only versions,licenses     these checks alone
    scripts/release_check.py --advisories FOLDER          a clone of RustSec's advisory-db, where github.com cannot be reached
    scripts/release_check.py --keep                       leaves the clone that was built in target/release-check

    versions      the workspace, its crates, the lock file, the Python package, the changelog and the manual pages have one version
    changelog     has entries for this version, under its number and date or under `Unreleased`
    tree          everything is committed
    licenses      packaging/THIRD-PARTY.txt is what the dependencies say
    deny          the rules of deny.toml for bans, licenses and sources hold
    advisories    no dependency has a known advisory
    install       `make install` into an empty folder and `make uninstall` leave nothing; no program is too large
    lintian       finds no error and no warning in the packages
    reproducible  this folder and a clone in another one build the same static program and the same packages

Exit code: 0 all checks are ok, 1 one has failed, 3 none has failed, and some were skipped.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FOLDER = ROOT / "target/release-check"
DENY = ROOT / "target/tools/bin/cargo-deny"
STATIC = f"{platform.machine()}-unknown-linux-musl"
# Programs that are handed out are smaller than that.
PROGRAM_BYTES_MAX = 20_000_000
ADVISORIES = "https://github.com/RustSec/advisory-db"


class Failed(Exception):
    """A check failed. The message says why."""


class Skipped(Exception):
    """A check could not be made. The message says why."""


def run(command, log=None, **options):
    """Runs a command, and returns its output. If the command fails, the check fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **{"cwd": ROOT} | options)
    if log:
        log.write_text(done.stdout)
    if done.returncode != 0:
        said = "\n  ".join(done.stdout.strip().splitlines()[-20:])
        raise Failed(f"{' '.join(map(str, command))} failed with {done.returncode}:\n  {said}")
    return done.stdout


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def versions(_):
    expected = version()
    for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")):
        if tomllib.loads(manifest.read_text())["package"]["version"] != {"workspace": True}:
            raise Failed(f"{manifest.relative_to(ROOT)} has a version of its own, not that of the workspace")
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    for package in locked:
        if "source" not in package and package["version"] != expected:
            raise Failed(f"Cargo.lock: {package['name']} {package['version']}, the workspace is {expected}\n  hint: cargo update --workspace")
    project = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())["project"]
    if "version" not in project.get("dynamic", []):
        raise Failed("crates/python/pyproject.toml: the version is not that of the crate (dynamic)")
    numbered = re.findall(r"^## v?(\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if numbered and numbered[0] != expected and "\n## Unreleased" not in (ROOT / "CHANGELOG.md").read_text():
        raise Failed(f"CHANGELOG.md: the newest version is {numbered[0]}, the workspace is {expected}")
    run(["make", "build"])
    built = ROOT / "target/package/built"
    said = run([built / "isochrome", "--version"]).strip()
    if said != f"isochrome {expected}":
        raise Failed(f"isochrome --version prints {said!r}, the workspace is {expected}")
    pages = sorted((built / "man").glob("*.1"))
    for page in pages:
        if expected not in next(line for line in page.read_text().splitlines() if line.startswith(".TH")):
            raise Failed(f"{page.name}: the title does not have version {expected}")
    return f"{expected}: workspace, lock file, Python package, changelog, program, {len(pages)} manual pages"


def changelog(_):
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## (?:{re.escape(version())} - \d{{4}}-\d\d-\d\d|Unreleased)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise Failed(f"CHANGELOG.md has neither `## {version()} - YEAR-MONTH-DAY` nor `## Unreleased`")
    entries = len(re.findall(r"^- ", found[1], re.MULTILINE))
    if not entries:
        raise Failed(f"CHANGELOG.md: there is nothing under {found[0].splitlines()[0]}")
    return f"{entries} entries under {found[0].splitlines()[0][3:]}"


def tree(_):
    changed = run(["git", "status", "--porcelain"]).splitlines()
    if changed:
        raise Failed("not committed:\n  " + "\n  ".join(changed[:20]))
    return run(["git", "log", "-1", "--format=%h %s"]).strip()


def licenses(_):
    run([sys.executable, "scripts/licenses.py", "--check"])
    text = (ROOT / "packaging/THIRD-PARTY.txt").read_text()
    return f"{len(re.findall(r'^    https?://', text, re.MULTILINE))} packages in packaging/THIRD-PARTY.txt"


def deny(_):
    said = run([DENY, "--locked", "check", "bans", "licenses", "sources"])
    return said.strip().splitlines()[-1]


def advisories(options):
    config, environment, dated = ROOT / "deny.toml", dict(os.environ), ""
    if options.advisories:
        # git takes the clone for what it would fetch.
        environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{options.advisories.resolve()}.insteadOf", "GIT_CONFIG_VALUE_0": ADVISORIES}
        config = FOLDER / "deny.toml"
        FOLDER.mkdir(parents=True, exist_ok=True)
        config.write_text((ROOT / "deny.toml").read_text().replace("[advisories]\n", f'[advisories]\ndb-path = "{FOLDER / "advisories"}"\n'))
        dated = " by the advisories of " + run(["git", "-C", options.advisories, "log", "-1", "--format=%cs"]).strip()
    try:
        said = run([DENY, "--locked", "--config", config, "check", "advisories"], env=environment)
    except Failed as failure:
        if f"failed to fetch advisory database {ADVISORIES}" in str(failure):
            raise Skipped("the advisories cannot be fetched from github.com\n  hint: --advisories FOLDER, with a clone of RustSec's advisory-db") from failure
        raise
    return said.strip().splitlines()[-1] + dated


def install(_):
    folder = FOLDER / "installed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    place = [f"DESTDIR={folder}", "PREFIX=/usr/local"]
    run(["make", "install", *place])
    program = folder / "usr/local/bin/isochrome"
    size = program.stat().st_size
    if size > PROGRAM_BYTES_MAX:
        raise Failed(f"the program has {size} bytes, {PROGRAM_BYTES_MAX} at most")
    listed = [folder / line.lstrip("/") for line in (folder / "usr/local/share/doc/isochrome/installed").read_text().splitlines()]
    missing = [path for path in listed if not path.exists()]
    if missing:
        raise Failed(f"not installed, though listed: {missing[0]}")
    run(["make", "uninstall", *place])
    left = sorted(folder.rglob("*"))
    if left:
        raise Failed(f"left behind by `make uninstall`: {left[0]} and {len(left) - 1} more")
    return f"{sum(not str(line).endswith('/') for line in listed)} files and folders, none left; the program has {size / 1e6:.1f} MB"


def lintian(_):
    if not shutil.which("lintian"):
        raise Skipped("lintian is not installed\n  hint: apt-get install -y lintian")
    run(["make", "deb"])
    packages = sorted((TARGET / "dist").glob("*.deb"))
    # This one is for packages that are uploaded to Debian.
    run(["lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", "initial-upload-closes-no-bugs", *packages])
    return ", ".join(package.name for package in packages)


def built(folder, environment):
    """The files that `make deb dist` builds in a folder for this architecture: name -> SHA-256 and size."""
    run(["make", "deb", "dist", f"DIST={STATIC}"], cwd=folder, env=environment, log=FOLDER / f"{folder.name}.log")
    dist = Path(environment.get("CARGO_TARGET_DIR", folder / "target")) / "dist"
    files = sorted([*dist.glob("*.deb"), dist / f"isochrome-{STATIC.partition('-')[0]}"])
    return {path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size) for path in files}


def reproducible(options):
    if run(["git", "status", "--porcelain"]):
        raise Failed("the clone would be built from other files than these: not everything is committed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    here = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "SOURCE_DATE_EPOCH")}
    first = built(ROOT, here)
    # A path of another length, and nothing that was built before. The tools that pack are not part of the built files.
    clone = FOLDER / "a-clone-of-this-commit"
    shutil.rmtree(clone, ignore_errors=True)
    run(["git", "clone", "--quiet", "--no-local", ROOT, clone])
    (clone / "target").mkdir()
    (clone / "target/tools").symlink_to(ROOT / "target/tools")
    second = built(clone, {name: value for name, value in here.items() if name != "CARGO_TARGET_DIR"})
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise Failed(f"two builds differ in {', '.join(different)}\n  hint: diffoscope target/dist {clone.relative_to(ROOT)}/target/dist")
    if not options.keep:
        shutil.rmtree(clone)
    large = [name for name, (_, size) in first.items() if size > PROGRAM_BYTES_MAX]
    if large:
        raise Failed(f"{large[0]} has {first[large[0]][1]} bytes, {PROGRAM_BYTES_MAX} at most")
    return "\n".join(f"{digest} {name}, {size / 1e6:.1f} MB" for name, (digest, size) in sorted(first.items()))


CHECKS = [tree, versions, changelog, licenses, deny, advisories, install, lintian, reproducible]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [check.__name__ for check in CHECKS]
    parser.add_argument("--only", metavar="NAMES", help=f"checks, with commas between them: {','.join(names)}")
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help="a clone of RustSec's advisory-db")
    parser.add_argument("--keep", action="store_true", help="keep the clone that was built")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    table = []
    for check in CHECKS:
        if check.__name__ not in wanted:
            continue
        print(f"{check.__name__} ...", file=sys.stderr, flush=True)
        try:
            table.append((check.__name__, "ok", check(options)))
        except Failed as failure:
            table.append((check.__name__, "failed", str(failure)))
        except Skipped as reason:
            table.append((check.__name__, "skipped", str(reason)))
    for name, outcome, said in table:
        print(f"{name:13} {outcome:8} " + said.replace("\n", "\n" + " " * 23))
    counts = {outcome: sum(row[1] == outcome for row in table) for outcome in ("ok", "failed", "skipped")}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 3 if counts["skipped"] else 0


if __name__ == "__main__":
    sys.exit(main())
