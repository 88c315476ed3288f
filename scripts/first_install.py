#!/usr/bin/env python3
"""Installs isochrome in a fresh Debian 12 in each way that the README names, tries it, removes it, and writes a transcript.

    scripts/first_install.py                         every way; writes docs/results/install.md. Needs root, and half an hour
    scripts/first_install.py --only deb,static       these ways alone
    scripts/first_install.py -o FILE                 writes there instead

    deb        `make deb`, then `apt-get install` of the packages
    static     `make dist`, then a copy of the program
    install    `make install` from the sources, with a Rust toolchain by rustup
    cargo      `cargo install --path crates/cli --locked`
    wheel      `pip install` of the wheel that --wheel names

The Debian is made from packages by mmdebstrap (variant minbase) and unpacked anew for each way. It has its own processes, /run and /dev/shm;
the kernel, /sys and the other devices are those of this machine. Root installs; the three commands are those of an ordinary user. A way has failed
if a command of it has, if its manual page or a completion is not found, or if a file is left when it was removed.

Exit code: 0 all ways passed, 1 could not run, 2 one has failed, 3 none has failed, and some were skipped.
"""

import argparse
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FOLDER = ROOT / "target/first-install"
DIST = TARGET / "dist"
MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
# Packages that show whether manual pages and completions are found and a C program can be built. isochrome itself does not need them.
SHOWN_BY = ["man-db", "bash-completion", "zsh", "fish", "pkg-config"]
# Folders in which files change without isochrome: those of apt, dpkg, man and cargo, and those in which the commands are tried and built.
NOT_OURS = [
    *["/proc", "/sys", "/dev", "/run", "/tmp", "/home/user", "/source", "/given", "/var/cache", "/var/lib/apt", "/var/lib/dpkg", "/var/log", "/root/.rustup"],
    *["/root/.cargo/registry", "/root/.cargo/git", "/root/.cargo/.package-cache", "/root/.cargo/.global-cache", "/root/.cargo/.crates", "/etc/ld.so.cache"],
]
# Environment variables that name the certificates that programs trust.
TRUST = ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "PIP_CERT"]
PATH = "/opt/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Lines of a command's output that are written down: as many at the beginning and at the end.
LINES_SHOWN = 12

THREE = [
    "isochrome --version",
    "isochrome doctor",
    "isochrome exec --colors 0-3 -- sleep 1",
    "isochrome demo",
]
FOUND_MANUAL = ["man -w isochrome", "man -w isochrome-exec"]
FOUND_COMPLETIONS = [
    "bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader isochrome; complete -p isochrome'",
    "zsh -c 'autoload -U compinit; compinit -u -d /tmp/zcompdump; echo $_comps[isochrome]' | grep isochrome",
    # Without this variable fish looks in /usr/share alone.
    "XDG_DATA_DIRS=/usr/local/share:/usr/share fish -c 'complete -C \"isochrome doc\"' | grep doctor",
]
RUSTUP = [
    "apt-get install -y -qq --no-install-recommends gcc libc6-dev make curl ca-certificates",
    "{rustup} -y --profile minimal",
]
C_PROGRAM = [
    "cc -O2 -o /tmp/colors {examples}/c/colors.c $(pkg-config --cflags --libs isochrome)",
    "/tmp/colors",
]


class CouldNotRun(Exception):
    """A requirement is missing on this machine. The message names it."""


class Way:
    """A way of installing. It has commands of root that prepare, install and remove, and commands of root or a user that try the program."""

    def __init__(self, needs=(), install=(), first=THREE, tried=(), remove=(), given=(), source=False):
        self.needs, self.install, self.first, self.tried, self.remove = needs, install, first, tried, remove
        self.given, self.source = given, source


def latest(pattern):
    found = sorted(DIST.glob(pattern))
    return found[-1] if found else DIST / pattern


def ways(options):
    packages = [latest("isochrome_*_amd64.deb"), latest("libisochrome-dev_*_amd64.deb")]
    static = DIST / "isochrome-x86_64"
    found = {
        "deb": Way(
            needs=["apt-get install -y -qq --no-install-recommends gcc libc6-dev"],
            install=[f"apt-get install -y --no-install-recommends {' '.join(f'/given/{path.name}' for path in packages)}"],
            tried=[*FOUND_MANUAL, *FOUND_COMPLETIONS, *(line.format(examples="/usr/share/doc/isochrome/examples") for line in C_PROGRAM)],
            remove=["apt-get purge -y isochrome libisochrome-dev"],
            given=packages,
        ),
        "static": Way(
            install=["install -m 755 /given/isochrome-x86_64 /usr/local/bin/isochrome"],
            tried=["isochrome generate completions bash | head -n 1"],
            remove=["rm /usr/local/bin/isochrome"],
            given=[static],
        ),
        "install": Way(
            needs=RUSTUP,
            install=[". /root/.cargo/env && make -C /source install"],
            tried=[*FOUND_MANUAL, *FOUND_COMPLETIONS, *(line.format(examples="/usr/local/share/doc/isochrome/examples") for line in C_PROGRAM)],
            remove=["make -C /source uninstall"],
            source=True,
        ),
        "cargo": Way(
            needs=RUSTUP,
            # Where a user looks: /root is closed to others.
            install=[". /root/.cargo/env && cd /source && cargo install --path crates/cli --locked --root /opt/tools"],
            tried=["isochrome generate man -o /tmp/man && man -w /tmp/man/isochrome.1", "isochrome generate completions bash | head -n 1"],
            remove=[". /root/.cargo/env && cargo uninstall isochrome-cli --root /opt/tools", "rm -r /opt/tools"],
            source=True,
        ),
    }
    if options.wheel:
        found["wheel"] = Way(
            needs=["apt-get install -y -qq --no-install-recommends python3-venv"],
            install=["python3 -m venv /opt/tools", f"/opt/tools/bin/pip install --quiet /given/{options.wheel.name}"],
            # The wheel has the Python package and `isochrome-sweep`, not the program.
            first=["isochrome-sweep --version", "isochrome-sweep --help | head -n 3"],
            tried=["/opt/tools/bin/python -c 'import isochrome; print(isochrome.__version__)'"],
            remove=["rm -r /opt/tools"],
            given=[options.wheel],
        )
    return found


class Chroot:
    """A fresh Debian, and the transcript of the commands in it."""

    def __init__(self, name, base, way, options):
        self.root = FOLDER / name
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.root, "-xf", base], check=True)
        for folder in ("given", "source"):
            (self.root / folder).mkdir()
        for path in [*way.given, *([options.rustup] if way.needs is RUSTUP else [])]:
            shutil.copy2(path, self.root / "given")
        if way.source:
            archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "-C", self.root / "source", "-x"], check=True, input=archive)
        # The network of this machine, and whom it trusts: a proxy may have an authority of its own.
        shutil.copy2("/etc/resolv.conf", self.root / "etc/resolv.conf")
        self.trusted = []
        if trusted := os.environ.get("SSL_CERT_FILE"):
            shutil.copy2(trusted, self.root / "given/trusted.crt")
            self.trusted = [f"{name}=/given/trusted.crt" for name in TRUST]
        self.text, self.failures = [], []

    def run(self, line, user="root"):
        """Runs a command line with its own processes, and returns its exit code and its output."""
        mounts = [
            "mount -t proc proc proc",
            "mount --rbind /sys sys",
            "mount --rbind /dev dev",
            "mount -t tmpfs tmpfs dev/shm",
            "mount -t tmpfs tmpfs run",
        ]
        # The command's own folder in memory lasts as long as the command: isochrome has to work with nothing set up.
        home = "/root" if user == "root" else f"/home/{user}"
        inner = f"env -i HOME={home} USER={user} LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive PATH={PATH} {' '.join(self.trusted)} sh -c"
        enter = f"exec chroot . {'' if user == 'root' else f'setpriv --reuid={user} --regid={user} --init-groups '}{inner} \"cd $HOME; $LINE\""
        script = " && ".join(["mount --make-rprivate /", f"cd '{self.root}'", *mounts, enter.replace("$HOME", home)])
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            env={"PATH": os.environ["PATH"], "LINE": line},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return done.returncode, done.stdout

    def show(self, line, user="root", accepted=(0,), all_lines=False):
        """Runs a command line, and adds it and its output to the transcript."""
        print(f"  {'#' if user == 'root' else '$'} {line}", file=sys.stderr, flush=True)
        code, said = self.run(line, user)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", part.split("\r")[-1]).rstrip() for part in said.rstrip("\n").split("\n")]
        lines = [part for part in lines if part and not part.startswith("(Reading database ...")]
        if not all_lines and len(lines) > 2 * LINES_SHOWN:
            lines = [*lines[:LINES_SHOWN], f"[... {len(lines) - 2 * LINES_SHOWN} lines ...]", *lines[-LINES_SHOWN:]]
        ending = [f"[exit code {code}]"] if code else []
        self.text += [f"{'#' if user == 'root' else '$'} {line}", *lines, *ending]
        if code not in accepted:
            self.failures.append(f"`{line}` ended with {code}")
        return code

    def files(self):
        """All files and folders except those in folders that change without isochrome."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            inside = os.path.join("/", os.path.relpath(folder, self.root)) if Path(folder) != self.root else "/"
            folders[:] = [name for name in folders if not os.path.join(inside, name).startswith(tuple(NOT_OURS))]
            found |= {os.path.join(inside, name) for name in [*folders, *names]}
        return {path for path in found if not path.startswith(tuple(NOT_OURS))}


def debian():
    """The archive of a fresh Debian. Makes the archive unless an earlier run has done so."""
    path = FOLDER / f"{SUITE}.tar"
    if not path.exists():
        if not shutil.which("mmdebstrap"):
            raise CouldNotRun("mmdebstrap is not installed\n  hint: apt-get install -y mmdebstrap")
        FOLDER.mkdir(parents=True, exist_ok=True)
        print(f"making a fresh {SUITE}", file=sys.stderr)
        partial = path.with_suffix(".partial.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", SUITE, str(partial), MIRROR]
        if subprocess.run(command).returncode != 0:
            raise CouldNotRun("mmdebstrap has failed")
        partial.rename(path)
    return path


def tried(name, base, way, options):
    """Tries one way, and returns its transcript and the failed commands."""
    chroot = Chroot(name, base, way, options)
    chroot.run("useradd --create-home user")
    chroot.run("apt-get update -qq")
    for line in way.needs:
        chroot.show(line.format(rustup=f"/given/{options.rustup.name}" if options.rustup else ""))
    before = chroot.files()
    for line in way.install:
        chroot.show(line)
    added = chroot.files() - before
    chroot.text.append(f"[{len(added)} files and folders were added]")
    for line in way.first:
        # 3: the machine was too noisy for a conclusion, which is an answer.
        chroot.show(line, "user", accepted=(0, 3), all_lines=name == "deb")
    without = chroot.files()
    code, said = chroot.run(f"apt-get install -y -qq --no-install-recommends {' '.join(SHOWN_BY)}")
    if code != 0:
        raise CouldNotRun(f"packages cannot be installed in the chroot:\n{said[-2000:]}")
    shown_by = chroot.files() - without
    chroot.text.append(f"[{', '.join(SHOWN_BY)} were installed]")
    for line in way.tried:
        chroot.show(line, "user")
    for line in way.remove:
        chroot.show(line)
    # Folders that hold files of packages installed since then do not count.
    kept = shown_by | {str(folder) for path in shown_by for folder in Path(path).parents}
    left = sorted(path for path in chroot.files() - before - kept if chroot.run(f"dpkg-query -S '{path}'")[0] != 0)
    gone = sorted(before - chroot.files())
    chroot.text.append(f"[{len(left)} files and folders are left, {len(gone)} of before are gone]")
    chroot.failures += [f"left behind: {path}" for path in left[:20]] + [f"gone: {path}" for path in gone[:20]]
    if not options.keep:
        shutil.rmtree(chroot.root)
    return chroot


def machine():
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{model[1] if model else platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}"


def page(results, skipped, options):
    commit = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%h"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    lines = [
        "# A fresh Debian 12",
        "",
        "Written by `scripts/first_install.py`, which makes a Debian 12 from its packages (mmdebstrap, variant minbase), anew for each way of installing,",
        "and does there what the README says: install, try, remove. `#` is root, `$` an ordinary user. Nothing is set up besides what is shown. After the",
        f"three commands come {', '.join(SHOWN_BY)}, which show that manual pages, completions and the library for C are found.",
        "The packages and the static program were built on the host by `make deb` and `make dist`.",
        "",
        f"Seen on {datetime.date.today()}, {machine()}, commit {commit}. Other work was going on, so what `demo` concludes is not a measurement of this page.",
        "",
    ]
    if options.rustup and options.downloaded:
        lines += ["https://sh.rustup.rs could not be reached: the installer is the one that it downloads, from static.rust-lang.org.", ""]
    lines += ["| way | outcome |", "|---|---|"]
    for name, chroot in results.items():
        failures = "; ".join(chroot.failures).replace("|", "\\|")
        lines.append(f"| [{name}](#{name}) | {failures or 'passed'} |")
    lines += [f"| {name} | not tried: {reason} |" for name, reason in skipped.items()]
    for name, chroot in results.items():
        lines += ["", f"## {name}", "", "```text", *chroot.text, "```"]
    return "\n".join(lines) + "\n"


def installer(options):
    """rustup's installer: the script of the README, or the program that it downloads."""
    host = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}[platform.machine()]
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    for name, address in [("rustup.sh", "https://sh.rustup.rs"), ("rustup-init", f"https://static.rust-lang.org/rustup/dist/{host}/rustup-init")]:
        path = folder / name
        if subprocess.run(["curl", "-sSf", "-o", path, address], stderr=subprocess.DEVNULL).returncode == 0:
            path.chmod(0o755)
            options.downloaded = name == "rustup-init"
            return path
    raise CouldNotRun("rustup's installer cannot be reached")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WAYS", help="these ways, with commas between them")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel of the Python package")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/results/install.md", metavar="FILE")
    parser.add_argument("--keep", action="store_true", help=f"keep the chroots in {FOLDER.relative_to(ROOT)}")
    options = parser.parse_args()
    options.rustup, options.downloaded = None, False
    found = ways(options)
    wanted = options.only.split(",") if options.only else list(found)
    if unknown := set(wanted) - set(found):
        parser.error(f"no such way: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("run it as root: it makes a chroot")
    results, skipped = {}, {name: "left out by --only" for name in found if name not in wanted}
    try:
        base = debian()
        if any(found[name].needs is RUSTUP for name in wanted):
            options.rustup = installer(options)
        for name in wanted:
            missing = [path for path in found[name].given if not path.exists()]
            if missing:
                print(f"skipped: {name}; {missing[0].name} is missing\n  hint: make deb dist", file=sys.stderr)
                skipped[name] = f"{missing[0].name} was not built"
                continue
            print(name, file=sys.stderr, flush=True)
            results[name] = tried(name, base, found[name], options)
            options.output.write_text(page(results, skipped, options))
    except CouldNotRun as reason:
        print(f"first_install: {reason}", file=sys.stderr)
        return 1
    for name, chroot in results.items():
        print(f"{name}: {'; '.join(chroot.failures) or 'passed'}")
    if any(chroot.failures for chroot in results.values()):
        return 2
    return 3 if skipped.keys() & set(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
