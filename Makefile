# Two commands do everything on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`.

CARGO ?= cargo
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
RUSTUP := curl https://sh.rustup.rs -sSf | sh -s -- -y && . "$$HOME/.cargo/env"

.PHONY: demo test lint bench torture

# Builds the release, runs the main job, prints where the report is. Exit code 3 of the tool (inconclusive: the machine was too
# noisy, or has no colors) is an answer, not a failure.
demo: toolchain
	$(CARGO) build --release --locked
	./target/release/isochrome demo -o report || [ $$? -eq 3 ]

test: toolchain
	$(CARGO) test --workspace --locked

lint: toolchain
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Timing: nothing else should run meanwhile.
bench: toolchain
	$(CARGO) bench --workspace --locked

# Recolors a program 1000 times, and kills the tool 1000 times as it does so. Needs root.
torture: toolchain
	RECOLOR_ROUNDS=1000 HARDWARE_REQUIRED=1 $(CARGO) test --locked -p isochrome-cli --test recolor -- a_program --nocapture

.PHONY: toolchain
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
