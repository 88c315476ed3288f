#!/usr/bin/env python3
"""Boots an emulated machine with systemd as process 1, and runs checks of isochrome in it; `make emulated` builds and runs it all.

    scripts/emulated.py --binary target/release/isochrome                    # the checks of the memory server
    scripts/emulated.py --binary target/release/isochrome --only 'member*'
    scripts/emulated.py --binary target/release/isochrome --suite bookworm --kernel-suite bookworm-backports
    scripts/emulated.py --checks scripts/emulated/kernels --kernel linux-image-rt-amd64 --kernel-suite bookworm
    scripts/emulated.py --checks scripts/emulated/kernels --architecture aarch64 --processor cortex-a72 --binary target/aarch64-unknown-linux-musl/release/isochrome
    scripts/emulated.py --list

The image is made from Debian's packages by mmdebstrap, the kernel is Debian's as well. Both are made once and kept in the folder of --folder, where
the results of each run are put too. QEMU translates the code of the machine (TCG), so nothing needs virtualization, and nothing can be timed:
there are no caches. Colors are bits of the frame number by a palette that is given as a formula.

Each check is a program in the folder of --checks, and passes where it ends with 0; with 77 it could not be run, for the reason in its last line. A
line of the kernel's log that reports an oops, a warning, a stall, or a lock taken in the wrong order is a failure as well. A file whose name
has a dot is not a check: all checks share `checks.py`, for example.

Exit code: 0 all checks passed, 1 could not run, 2 a check failed, 3 none failed and some could not be run.
"""

import argparse
import fnmatch
import hashlib
import io
import lzma
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "scripts/emulated"
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Differences between architectures: Debian's name, the emulator, the default processor, and the device on which the kernel writes
# its log. QEMU takes long for Arm's own algorithm of pointer authentication, which also lets processors have another.
ARCHITECTURES = {
    "x86_64": ("amd64", ["qemu-system-x86_64", "-machine", "q35"], "max", "ttyS0"),
    "aarch64": ("arm64", ["qemu-system-aarch64", "-machine", "virt"], "max,pauth-impdef=on", "ttyAMA0"),
}
# Packages of the image, besides those that mmdebstrap's variant `minbase` has.
PACKAGES = ["systemd-sysv", "dbus", "udev", "python3", "procps", "busybox-static", "podman", "crun"]
# Files of these packages that are not needed and make the image large.
EXCLUDED = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"]
IMAGE_SIZE = "3G"
# Modules for the kernel's disks, for containers, and for swap on memory. The modules that these depend on are added.
MODULES = ["virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "overlay", "autofs4", "zram"]
# Units that would fail, because the kernel's module for them is not among these.
MASKED = ["proc-sys-fs-binfmt_misc.mount", "systemd-binfmt.service"]
# Space for the files that a machine gives back.
RESULTS_BYTES = 256 << 20
# Lines of a kernel's log that report a defect. Debian's kernels do not check the order of locks; others do. `MP-BIOS bug` reports the timer of an
# emulated machine that had no time to run, which is not a defect.
DEFECTS = re.compile(
    r"WARNING:|(?<!MP-BIOS )\bBUG:|\bOops|kernel panic|Call Trace|general protection|segfault|\btraps: |trap (?:divide|invalid)|lockdep|possible recursive locking"
    r"|possible circular locking|inconsistent lock state|suspicious RCU|rcu: INFO|soft lockup|hard LOCKUP|blocked for more than|UBSAN|KASAN|bad page"
    r"|Bad rss-counter|Out of memory|refcount_t:|list_(?:add|del) corruption",
    re.IGNORECASE,
)


class CouldNotRun(Exception):
    """A requirement was missing, or a step failed before any check ran. The message says which."""


def run(command, **options):
    """Runs a command, and returns its output; its errors are shown only if it fails."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, **options)
    except FileNotFoundError as error:
        hint = "apt-get install -y mmdebstrap qemu-system-x86 qemu-system-arm"
        raise CouldNotRun(f"{command[0]} is not installed\n  hint: {hint}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-20:]
        raise CouldNotRun(f"{' '.join(map(str, command[:3]))} ... failed with {done.returncode}:\n  " + "\n  ".join(said))
    return done.stdout.decode(errors="replace")


def matches(name, patterns):
    """Whether a name matches one of the patterns of a list with commas."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split(","))


def progress(text):
    print(text, file=sys.stderr, flush=True)


# Packages


class Debian:
    """Packages of one release of Debian for one architecture, with an apt state of their own: that of this machine stays as it is."""

    def __init__(self, folder, suite, architecture):
        self.folder = folder / f"apt-{suite}-{architecture}"
        (self.folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        (self.folder / "archives/partial").mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        self.sources = self.folder / "sources.list"
        self.sources.write_text(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n")
        self.options = [
            f"-oDir::Etc::sourcelist={self.sources.resolve()}",
            "-oDir::Etc::sourceparts=/nonexistent",
            f"-oDir::State::lists={(self.folder / 'lists').resolve()}",
            f"-oDir::State::status={(self.folder / 'status').resolve()}",
            f"-oDir::Cache={self.folder.resolve()}",
            f"-oAPT::Architecture={architecture}",
            f"-oAPT::Architectures={architecture}",
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Languages=none",
        ]

    def update(self):
        if not list((self.folder / "lists").glob("*_Packages*")):
            run(["apt-get", *self.options, "update"])

    def field(self, package, name):
        """A field of a package's record; empty if the record has no such field."""
        self.update()
        text = run(["apt-cache", *self.options, "show", "--no-all-versions", package])
        found = re.search(rf"^{name}: (.*)$", text, re.MULTILINE)
        return found[1] if found else ""

    def unpacked(self, package):
        """The folder with the files of a package. Downloads the package unless an earlier run has done so."""
        into = self.folder / package
        if not into.is_dir():
            self.update()
            progress(f"downloading {package}")
            run(["apt-get", *self.options, "download", package], cwd=self.folder / "archives")
            archive = next((self.folder / "archives").glob(f"{package}_*.deb"))
            partial = into.with_name(f"{package}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            run(["dpkg-deb", "-x", archive, partial])
            archive.unlink()
            partial.rename(into)
        return into


class Kernel:
    """A kernel of Debian. `package` depends on the newest kernel of its kind, such as linux-image-amd64."""

    def __init__(self, debian, package):
        found = re.search(r"linux-image-[\w.+~-]+", debian.field(package, "Depends"))
        folder = debian.unpacked(found[0] if found else package)
        self.image = next((folder / "boot").glob("vmlinuz-*"))
        self.version = self.image.name.removeprefix("vmlinuz-")
        modules = next(path for path in (folder / "lib/modules", folder / "usr/lib/modules") if path.is_dir())
        self.modules = {path.name.split(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}

    def module(self, name):
        path = self.modules[name]
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content

    def in_order(self, names):
        """The modules of these names and those that they depend on, each after what it needs: (name, content). What is built in has none."""
        found = {}

        def add(name):
            if name in found or name not in self.modules:
                return
            content = self.module(name)
            depends = re.search(rb"\0depends=([\w,-]*)\0", content)
            for other in filter(None, depends[1].decode().replace("-", "_").split(",") if depends else []):
                add(other)
            found[name] = content

        for name in names:
            add(name)
        return found.items()


def can_execute(architecture):
    """Has the kernel execute programs of another architecture in user-mode emulation, which making an image needs."""
    if architecture == run(["dpkg", "--print-architecture"]).strip() or "ok" in run(["sh", "-c", "arch-test $0 || true", architecture]):
        return
    formats = Path("/proc/sys/fs/binfmt_misc")
    if not (formats / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", formats])
    processor = next(processor for processor, (debian, *_) in ARCHITECTURES.items() if debian == architecture)
    run(["update-binfmts", "--enable", f"qemu-{processor}"])


def image(folder, suite, architecture):
    """The path of a disk with a small Debian. Makes the disk unless an earlier run has done so."""
    recipe = hashlib.sha256(repr((suite, PACKAGES, EXCLUDED, IMAGE_SIZE)).encode()).hexdigest()[:8]
    path = folder / f"debian-{suite}-{architecture}-{recipe}.ext4"
    if not path.exists():
        progress(f"making {path.name} from Debian's packages: some minutes")
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        can_execute(architecture)
        run([
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--format=null",
            f"--architectures={architecture}",
            f"--include={','.join(PACKAGES)}",
            *[f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED],
            "--customize-hook=echo emulated > $1/etc/hostname; : > $1/etc/fstab; chroot $1 passwd -d root; rm -rf $1/var/lib/apt/lists $1/var/cache/apt",
            # Where user namespaces are used, this runs inside one, so that owners are as in the image. What is mounted in the image, such as /proc, is
            # not part of it, and is not seen at a second place.
            "--customize-hook=plain=$(mktemp -d) && mount --bind $1 $plain && "
            f"mke2fs -q -t ext4 -d $plain {partial.resolve()} {IMAGE_SIZE} && umount $plain && rmdir $plain",
            suite,
            "/dev/null",
            f"deb [signed-by={KEYRING}] {MIRROR} {suite} main",
        ])
        partial.rename(path)
    return path


# Initial file system


class Archive:
    """An archive of files as kernels unpack it when they start. [Linux, Documentation/driver-api/early-userspace/buffer-format.rst]"""

    def __init__(self):
        self.out, self.count, self.folders = io.BytesIO(), 0, set()

    def put(self, name, mode, content=b""):
        self.count += 1
        encoded = name.encode() + b"\0"
        fields = (self.count, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        for piece in (b"070701" + b"".join(b"%08X" % field for field in fields) + encoded, content):
            self.out.write(piece)
            self.out.write(b"\0" * (-self.out.tell() % 4))

    def folder(self, name):
        if name and name not in self.folders:
            self.folder(name.rpartition("/")[0])
            self.folders.add(name)
            self.put(name, stat.S_IFDIR | 0o755)

    def file(self, name, content, mode=0o644):
        self.folder(name.rpartition("/")[0])
        self.put(name, stat.S_IFREG | mode, content)

    def link(self, name, target):
        self.folder(name.rpartition("/")[0])
        self.put(name, stat.S_IFLNK | 0o777, target.encode())

    def bytes(self):
        end = Archive()
        end.put("TRAILER!!!", 0)
        return self.out.getvalue() + end.out.getvalue()


def initial_files(kernel, busybox, payload):
    """The files that the kernel starts with: modules, the script that loads them and mounts the image, and the payload for the image."""
    archive = Archive()
    archive.file("bin/busybox", busybox.read_bytes(), 0o755)
    archive.file("init", (HERE / "init").read_bytes(), 0o755)
    order = []
    for name, content in kernel.in_order(MODULES):
        archive.file(f"modules/{name}.ko", content)
        order.append(name)
    archive.file("modules/order", "".join(name + "\n" for name in order).encode())
    for folder in ("dev", "proc", "sys", "root"):
        archive.folder(folder)
    for name, (content, mode) in payload.items():
        archive.file(f"payload/{name}", content, mode)
    return archive.bytes()


def stripped(program, options):
    """The program without the symbols for debuggers if the tool for the architecture is installed, because the machine reads large files slowly."""
    tool = f"{options.architecture}-linux-gnu-strip"
    if not shutil.which(tool):
        return program.read_bytes()
    # In the folder of this run, as several may run at the same time.
    small = options.folder / options.name / "stripped"
    run([tool, "-o", small, program])
    content = small.read_bytes()
    small.unlink()
    return content


def limit_s(check):
    """Longest time that a check may take, in s. A check states it in a line such as `# Takes at most 900 s.`"""
    said = re.search(r"^# Takes at most (\d+) s\.$", check.read_text(), re.MULTILINE)
    return int(said[1]) if said else 300


def payload(options, checks):
    """The files that the machine has besides Debian: name -> (content, mode)."""
    serve = ROOT / "examples/serve"
    palette = '{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}\n'
    start = re.search(r"^ExecStart=(.*)$", (serve / "isochrome.service").read_text(), re.MULTILINE)[1]
    given = f"[Service]\nExecStart=\nExecStart={start} --trust-palette --palette /etc/isochrome/bits.json --max-pause 2s\n"
    files = {
        "usr/local/bin/isochrome": (stripped(options.binary, options), 0o755),
        "etc/systemd/system/isochrome.service": ((serve / "isochrome.service").read_bytes(), 0o644),
        "etc/systemd/system/isochrome.service.d/palette.conf": (given.encode(), 0o644),
        "usr/share/containers/oci/hooks.d/isochrome.json": ((serve / "oci-hook.json").read_bytes(), 0o644),
        "etc/isochrome/bits.json": (palette.encode(), 0o644),
        "etc/systemd/system/emulated.service": ((HERE / "emulated.service").read_bytes(), 0o644),
        "emulated/run": ((HERE / "run").read_bytes(), 0o755),
        "emulated/order": ("".join(f"{limit_s(check)} {check.name}\n" for check in checks).encode(), 0o644),
    }
    if options.tests:
        files["emulated/checks/tests"] = (stripped(options.tests, options), 0o755)
    for path in [*HERE.glob("*.py"), *sorted(options.checks.iterdir())]:
        if path.is_file():
            files[f"emulated/checks/{path.name}"] = (path.read_bytes(), 0o755)
    return files


# The machine


def numa(options):
    """Arguments of the emulator for nodes that have equal parts of the memory and of the CPUs."""
    arguments = []
    for node in range(options.nodes if options.nodes > 1 else 0):
        first, last = (options.cpus * at // options.nodes for at in (node, node + 1))
        arguments += ["-object", f"memory-backend-ram,id=node{node},size={options.memory // options.nodes}M"]
        arguments += ["-numa", f"node,nodeid={node},cpus={first}-{last - 1},memdev=node{node}"]
    return arguments


def boot(options, kernel, disk, initial, folder):
    """Runs the machine until it switches itself off. Returns whether it did so in time."""
    _, emulator, processor, console = ARCHITECTURES[options.architecture]
    (folder / "initial.cpio").write_bytes(initial)
    with open(folder / "results.tar", "wb") as results:
        results.truncate(RESULTS_BYTES)
    tap, log = folder / "checks.tap", folder / "console.log"
    tap.touch()
    command = [
        *[*emulator, "-cpu", options.processor or processor],
        *["-accel", "tcg,thread=multi", "-smp", f"{options.cpus},sockets={options.nodes}", "-m", f"{options.memory}M", *numa(options), "-nodefaults", "-display", "none", "-no-reboot"],
        *["-kernel", str(kernel.image), "-initrd", str(folder / "initial.cpio")],
        # A machine whose kernel has panicked ends at once, and one that has not ended in time is ended.
        *["-append", f"console={console} loglevel=5 panic=-1 systemd.show_status=no systemd.unit=emulated.service {' '.join(map('systemd.mask={}'.format, MASKED))} {options.append}"],
        *["-serial", f"file:{log}"],
        *["-drive", f"if=none,id=image,format=raw,snapshot=on,file={disk}", "-device", "virtio-blk-pci,drive=image"],
        *["-drive", f"if=none,id=results,format=raw,file={folder / 'results.tar'}", "-device", "virtio-blk-pci,drive=results"],
        *["-device", "virtio-serial-pci", "-chardev", f"file,id=tap,path={tap}", "-device", "virtserialport,chardev=tap,name=tap"],
        *["-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"],
    ]
    try:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise CouldNotRun(f"{command[0]} is not installed\n  hint: apt-get install -y qemu-system-x86 qemu-system-arm") from error
    try:
        begin = time.monotonic()
        with open(tap) as lines:
            while machine.poll() is None and time.monotonic() - begin < options.timeout:
                print(lines.read(), end="", flush=True)
                time.sleep(0.5)
            print(lines.read(), end="", flush=True)
        return machine.poll() is not None
    finally:
        machine.kill()
        machine.wait()


def judged(tap, logs, checks):
    """Counts of checks that passed, failed and did not run, and the lines of the kernel's log that report a defect."""
    results = re.findall(r"^(not ok|ok) \d+ - (\S+)( # SKIP)?", tap, re.MULTILINE)
    skipped = {name for _, name, skip in results if skip}
    passed = {name for result, name, _ in results if result == "ok"} - skipped
    failed = {check.name for check in checks} - passed - skipped
    # The console shows what the log has as well; a line counts once.
    lines = {re.sub(r"^.*?\[ *\d+\.\d+\] ?", "", line) for log in logs for line in log.splitlines() if DEFECTS.search(line)}
    return len(passed), sorted(failed), sorted(skipped), sorted(lines)


def tried(options, checks):
    debian_name = ARCHITECTURES[options.architecture][0]
    options.folder.mkdir(parents=True, exist_ok=True)
    kernel = Kernel(Debian(options.folder, options.kernel_suite, debian_name), options.kernel or f"linux-image-{debian_name}")
    busybox = Debian(options.folder, options.suite, debian_name).unpacked("busybox-static")
    busybox = next(path for path in (busybox / "bin/busybox", busybox / "usr/bin/busybox") if path.exists())
    disk = image(options.folder, options.suite, debian_name)
    folder = options.folder / options.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    initial = initial_files(kernel, busybox, payload(options, checks))
    progress(f"booting Debian's {options.suite} with kernel {kernel.version} on {options.cpus} emulated CPUs")
    begin = time.monotonic()
    ended = boot(options, kernel, disk, initial, folder)
    logs = [(folder / "console.log").read_text(errors="replace")]
    try:
        with tarfile.open(folder / "results.tar") as results:
            results.extractall(folder / "files", filter="data")
        logs.append((folder / "files/kernel.log").read_text(errors="replace"))
    except (tarfile.TarError, OSError) as error:
        progress(f"the machine has given no files back: {error}")
    (folder / "initial.cpio").unlink()
    (folder / "results.tar").unlink()
    passed, failed, skipped, lines = judged((folder / "checks.tap").read_text(errors="replace"), logs, checks)
    print(f"# kernel {kernel.version}, Debian {options.suite}, {time.monotonic() - begin:.0f} s, files in {folder}")
    for name in failed:
        print(f"# failed: {name}")
    for name in skipped:
        print(f"# not run: {name}")
    for line in lines:
        print(f"# kernel: {line}")
    if not ended:
        print(f"# the machine did not switch itself off in {options.timeout} s")
    if len(logs) < 2:
        print("# the kernel's log did not come back")
        print("".join(f"#   {line}\n" for line in logs[0].splitlines()[-20:]), end="")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    if failed or lines or not ended or len(logs) < 2:
        return 2
    return 3 if skipped else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=TARGET / "release/isochrome")
    parser.add_argument("--folder", type=Path, default=TARGET / "emulated", help="where the image, the kernels and the results are kept")
    parser.add_argument("--name", default="results", help="name of the folder in there for the results of this run")
    parser.add_argument("--checks", type=Path, default=HERE / "serve", help="folder of the checks")
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="run checks whose name, without the number in front, matches one of these")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="x86_64")
    parser.add_argument("--processor", help="processor as the emulator calls it, such as cortex-a72 [default: with all that the emulator has]")
    parser.add_argument("--tests", type=Path, metavar="PROGRAM", help="unit tests of crates/host, linked statically, for the checks that run them")
    parser.add_argument("--suite", default="trixie", help="release of Debian that the image is made from")
    parser.add_argument("--kernel", metavar="PACKAGE", help="kernel [default: linux-image-amd64 or -arm64]")
    parser.add_argument("--kernel-suite", metavar="SUITE", help="release of Debian that the kernel is from [default: that of the image]")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="size of the memory")
    parser.add_argument("--nodes", type=int, default=1, help="number of NUMA nodes, each with an equal part of the CPUs and of the memory")
    parser.add_argument("--append", default="", metavar="PARAMETERS", help="further parameters of the kernel")
    parser.add_argument("--timeout", type=float, default=1800, help="longest time that the machine may run, in s")
    parser.add_argument("--list", action="store_true", help="show the checks")
    options = parser.parse_args()
    options.kernel_suite = options.kernel_suite or options.suite
    checks = sorted(path for path in options.checks.iterdir() if re.match(r"\d+-", path.name))
    checks = [path for path in checks if matches(path.stem.partition("-")[2], options.only)]
    if options.list:
        print("".join(check.name + "\n" for check in checks), end="")
        return 0
    # Ends the machine as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if not checks:
            raise CouldNotRun(f"no check matches {options.only}\n  hint: --list shows them")
        return tried(options, checks)
    except CouldNotRun as error:
        progress(f"emulated: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
