# Two commands do everything on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`. `make check` is the quick one.

CARGO ?= cargo
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
RUSTUP := curl https://sh.rustup.rs -sSf | sh -s -- -y && . "$$HOME/.cargo/env"

.PHONY: demo check test test-python wheel lint bench results papers pages torture fuzz miri sanitize compat emulated matrix matrix-short build install uninstall deb dist deny licenses release-check book mdbook

# Paths of the machine that builds are no part of what is built: everybody who builds a release gets the same bytes.
REMAP := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo --remap-path-prefix=$(CURDIR)=/isochrome
demo compat emulator matrix matrix-short build dist: export RUSTFLAGS := $(strip $(RUSTFLAGS) $(REMAP))

# Builds the release, runs the main job, prints where the report is. Exit code 3 of the tool (inconclusive: the machine was too
# noisy, or has no colors) is an answer, not a failure.
demo: toolchain
	$(CARGO) build --release --locked
	./target/release/isochrome demo -o report || [ $$? -eq 3 ]

# All tests; then what was ignored, why, and the command that installs what is missing.
test: toolchain python
	$(PYTHON) scripts/tests.py $(CARGO) "$(MAKE) test-python"

# What can be said without hardware, without root and without a release build, in two minutes once the dependencies are built.
check: toolchain python
	$(PYTHON) scripts/structure.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --lib --bins

# The wheel as `pip install` builds it, in the profile of the tests, whose model it uses.
PYTHON ?= python3
PYTHON_PROFILE ?= dev
VENV := $(or $(CARGO_TARGET_DIR),target)/python
PINNED := crates/python/requirements-test.txt
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile

$(VENV)/made: $(PINNED)
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --no-deps -r $(PINNED)
	$(VENV)/bin/python -m pip check
	touch $@

test-python: toolchain python $(VENV)/made
	PATH="$(abspath $(VENV))/bin:$$PATH" MATURIN_PEP517_ARGS="--profile $(PYTHON_PROFILE) --locked" \
	  $(PIP) --no-deps --no-build-isolation --force-reinstall ./crates/python
	$(VENV)/bin/python -m pytest -p no:cacheprovider -rs crates/python/tests

# The wheel for users, in target/wheel: for every Python from 3.11 on, on Linux with glibc 2.17 or newer, which zig links against. auditwheel says
# what the wheel needs of the system; then the tests of what it installs run with it.
WHEEL := $(or $(CARGO_TARGET_DIR),target)/wheel
WHEEL_TOOLS := ziglang==0.17.1 auditwheel==6.8.2 pyelftools==0.33
wheel: toolchain python $(VENV)/made
	$(PIP) --no-deps $(WHEEL_TOOLS)
	rm -rf $(WHEEL)
	PATH="$(abspath $(VENV))/bin:$$PATH" maturin build --release --locked --zig --compatibility manylinux_2_17 -m crates/python/Cargo.toml -o $(WHEEL)
	$(VENV)/bin/python -m auditwheel show $(WHEEL)/*.whl
	$(PIP) --no-deps --force-reinstall $(WHEEL)/*.whl
	$(VENV)/bin/python -m pytest -p no:cacheprovider -rs crates/python/tests/test_documents.py crates/python/tests/test_model.py
	ls -l $(WHEEL)/*.whl

lint: toolchain python
	$(PYTHON) scripts/structure.py
	$(PYTHON) scripts/book.py check
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The book as a site in target/book, with all links checked. mdBook is installed in target/tools, unless its version is there already.
MDBOOK := 0.5.4
TOOLS := $(abspath $(or $(CARGO_TARGET_DIR),target))/tools
BOOK := $(abspath $(or $(CARGO_TARGET_DIR),target))/book
WITH_TOOLS := PATH="$(TOOLS)/bin:$$PATH"
book: mdbook
	$(WITH_TOOLS) mdbook build docs --dest-dir $(BOOK)
	$(PYTHON) scripts/book.py built $(BOOK)

mdbook: toolchain python
	$(WITH_TOOLS) mdbook --version 2>/dev/null | grep -qx 'mdbook v$(MDBOOK)' || \
	  $(CARGO) install mdbook --version $(MDBOOK) --locked --root $(TOOLS)

# Timing: nothing else should run meanwhile.
bench: toolchain
	$(CARGO) bench --workspace --locked

# Makes the pages of docs/results from their evidence. New evidence is measured by the commands that these pages name, with `-o FILE`.
results: toolchain
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p isochrome-lab --test report

# Plays the papers' figures, and makes docs/results/papers.md and its drawings from them.
papers: toolchain
	UPDATE_GOLDEN=1 $(CARGO) test --locked -p isochrome-report --test papers

# Shows the report that tests compare at three widths in a browser, and fails if anything overflows. Needs Chromium.
pages:
	$(PYTHON) scripts/pages.py crates/lab/tests/data/report.html

# Recolors a program 1000 times, kills the tool 1000 times as it does so, and has 1000 of its system calls fail; kills the memory server 200
# times, and has it read 1000 policies. Needs root, and strace.
torture: toolchain
	RECOLOR_ROUNDS=1000 RECOLOR_FAULTS=1000 HARDWARE_REQUIRED=1 $(CARGO) test --locked -p isochrome-cli --test recolor -- a_program --nocapture
	COMPACTION_SECONDS=600 HARDWARE_REQUIRED=1 $(CARGO) test --locked -p isochrome-cli --test programs -- while_memory_is_compacted --nocapture
	SERVE_KILLS=200 HARDWARE_REQUIRED=1 $(CARGO) test --locked -p isochrome-cli --test serve -- members_outlive --nocapture
	SERVE_RELOADS=1000 HARDWARE_REQUIRED=1 $(CARGO) test --locked -p isochrome-cli --test serve -- in_a_storm --nocapture

# Fuzzes every reader for an hour; `scripts/fuzz.py --help` says how to choose. Needs a nightly compiler and cargo-fuzz.
fuzz: toolchain python
	$(PYTHON) scripts/fuzz.py

# Unit tests in Miri, as far as it can execute them, and the host's under the address and the thread sanitizer. Need a nightly compiler with
# Miri and its sources: rustup toolchain install nightly --component miri,rust-src
miri: toolchain python
	$(PYTHON) scripts/miri.py isochrome-host --only 'sys::*'
	$(PYTHON) scripts/miri.py isochrome-model

SANITIZED = $(CARGO) +nightly test --locked -p isochrome-host --lib --target $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
sanitize: toolchain
	RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/address $(SANITIZED)
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/thread $(SANITIZED) -Zbuild-std

# Runs real programs with and without isochrome, and writes docs/results/compat.md. Root gets the packages that are not there; a program
# that is missing all the same is reported as such, which is an answer, not a failure (3).
compat: toolchain
	$(CARGO) build --release --locked -p isochrome-cli
	if [ "$$(id -u)" -eq 0 ]; then \
	  apt-get update; \
	  for package in $$($(PYTHON) scripts/compat.py --packages); do \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$package; \
	  done; \
	fi
	$(PYTHON) scripts/compat.py --binary $(or $(CARGO_TARGET_DIR),target)/release/isochrome || [ $$? -eq 3 ]

# Boots an emulated machine with systemd as process 1, and checks the memory server in it; `matrix` boots one for each of several kernels, and checks there
# that pages are moved. The program is linked statically, so that it runs on any release of Debian; Rust's own linker links for arm64. Root gets the
# packages that are not there. `make matrix EMULATED=x86_64-unknown-linux-musl MACHINES='6.*'` leaves out arm64; `matrix-short` is two machines and the
# checks that take little time.
EMULATED := x86_64-unknown-linux-musl
MACHINES := *
EMULATOR := mmdebstrap qemu-system-x86 e2fsprogs binutils
matrix: EMULATED := x86_64-unknown-linux-musl aarch64-unknown-linux-musl
matrix: EMULATOR += qemu-system-arm qemu-user-static binfmt-support arch-test binutils-aarch64-linux-gnu
emulated: emulator
	$(PYTHON) scripts/emulated.py --binary $(or $(CARGO_TARGET_DIR),target)/$(EMULATED)/release/isochrome
matrix: emulator
	for target in $(EMULATED); do \
	  $(LINKED) $(CARGO) test --no-run --release --locked -p isochrome-host --lib --target $$target || exit 1; \
	done
	$(PYTHON) scripts/matrix.py --only '$(MACHINES)'

matrix-short: emulator
	$(PYTHON) scripts/matrix.py --only 6.1,6.12 --check what-the-kernel-allows,exec,recolor,refusals,run,watch

LINKED := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
.PHONY: emulator
emulator: toolchain python
	rustup target add $(EMULATED)
	for target in $(EMULATED); do $(LINKED) $(CARGO) build --release --locked -p isochrome-cli --target $$target || exit 1; done
	if [ "$$(id -u)" -eq 0 ] && ! dpkg-query -W $(EMULATOR) >/dev/null 2>&1; then \
	  apt-get update; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(EMULATOR); \
	fi

# What is installed: the program, the library for C, manual pages and completions, all in target/package/built.
PACKAGE := target/package
build: toolchain
	$(CARGO) build --release --locked -p isochrome-cli -p isochrome-c
	rm -rf $(PACKAGE)/built && mkdir -p $(PACKAGE)/built/completions
	cp $(or $(CARGO_TARGET_DIR),target)/release/isochrome $(PACKAGE)/built
	strip --strip-debug --enable-deterministic-archives -o $(PACKAGE)/built/libisochrome.a $(or $(CARGO_TARGET_DIR),target)/release/libisochrome.a
	cd $(PACKAGE)/built && ./isochrome generate man -o man 2>/dev/null && cd completions && \
	  ../isochrome generate completions bash >isochrome && ../isochrome generate completions zsh >_isochrome && \
	  ../isochrome generate completions fish >isochrome.fish

# `make install PREFIX=$HOME/.local`, or `make build && sudo make install`: where root has no cargo, it installs what was built. What was
# installed is listed in PREFIX/share/doc/isochrome/installed, and `make uninstall` with the same PREFIX removes it.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
ZSHDIR ?= $(DATADIR)/zsh/site-functions
UNITDIR ?= $(PREFIX)/lib/systemd/system
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
DOCDIR ?= $(DATADIR)/doc/isochrome
PLACES = $(foreach name,PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR ZSHDIR UNITDIR TMPFILESDIR DOCDIR DESTDIR,$(name)="$($(name))")
install: $(if $(shell command -v $(CARGO)),build)
	BUILT=$(PACKAGE)/built $(PLACES) sh packaging/install.sh install
uninstall:
	$(PLACES) sh packaging/install.sh uninstall

# Debian packages of the program and of the library for C, in target/dist.
TOOLS := target/tools
DIST_FOLDER := $(or $(CARGO_TARGET_DIR),target)/dist
deb: build $(TOOLS)/bin/cargo-deb
	PATH="$(abspath $(TOOLS))/bin:$$PATH" sh packaging/deb.sh $(PACKAGE) $(DIST_FOLDER)

$(TOOLS)/bin/%:
	$(CARGO) install $* --locked --root $(TOOLS)

# Which licenses, sources and versions the dependencies may have: deny.toml. Advisories are fetched from github.com, so they are apart.
deny: $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --locked check bans licenses sources
	$(TOOLS)/bin/cargo-deny --locked check advisories

# The licenses of all dependencies, in packaging/THIRD-PARTY.txt.
licenses: toolchain python
	$(PYTHON) scripts/licenses.py

# What has to hold before a release; two builds of it have to be the same. Where github.com cannot be reached:
# make release-check ARGUMENTS="--advisories FOLDER", with a clone of RustSec's advisory-db.
release-check: toolchain python $(TOOLS)/bin/cargo-deb $(TOOLS)/bin/cargo-deny
	$(PYTHON) scripts/release_check.py $(ARGUMENTS)

# The program for users, linked statically, for each architecture: in target/dist, with check sums. Rust's own linker links for arm64. Where an
# emulator is there, both must print the same. `make dist DIST=x86_64-unknown-linux-musl` makes one.
DIST ?= x86_64-unknown-linux-musl aarch64-unknown-linux-musl
dist: toolchain
	rustup target add $(DIST)
	mkdir -p $(DIST_FOLDER) && rm -f $(DIST_FOLDER)/isochrome-*
	for target in $(DIST); do \
	  $(LINKED) $(CARGO) build --release --locked -p isochrome-cli --target $$target && \
	  cp $(or $(CARGO_TARGET_DIR),target)/$$target/release/isochrome $(DIST_FOLDER)/isochrome-$${target%%-*} || exit 1; \
	done
	if command -v qemu-aarch64 >/dev/null && [ "$(words $(DIST))" -eq 2 ]; then \
	  qemu-aarch64 $(DIST_FOLDER)/isochrome-aarch64 demo --model -o $(DIST_FOLDER)/report >$(DIST_FOLDER)/printed && \
	  $(DIST_FOLDER)/isochrome-x86_64 demo --model -o $(DIST_FOLDER)/report | cmp - $(DIST_FOLDER)/printed && \
	  rm -r $(DIST_FOLDER)/printed $(DIST_FOLDER)/report || exit 1; \
	fi
	cd $(DIST_FOLDER) && sha256sum isochrome-* | tee SHA256SUMS

.PHONY: toolchain python
python:
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'isochrome tests its package with Python 3.11 or newer. Install it with: apt-get install -y python3-venv' >&2; exit 1; }

toolchain:
	@command -v $(CARGO) >/dev/null || { \
	  echo 'isochrome needs a Rust toolchain. Install it with: $(RUSTUP)' >&2; exit 1; }
	@found=$$($(CARGO) --version | cut -d ' ' -f 2); \
	oldest=$$(printf '%s\n' "$(RUST_VERSION)" "$$found" | sort -V | head -n 1); \
	[ "$$oldest" = "$(RUST_VERSION)" ] || { \
	  if command -v rustup >/dev/null; then newer='rustup update stable && rustup default stable'; else newer='$(RUSTUP)'; fi; \
	  echo "isochrome needs Rust $(RUST_VERSION) or newer, and $(CARGO) is $$found. Get it with: $$newer" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  echo "isochrome needs a C linker. Install it with: apt-get install -y gcc" >&2; exit 1; }
