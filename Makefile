# Two commands do everything on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`.

CARGO ?= cargo

.PHONY: demo test lint bench

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

.PHONY: toolchain
toolchain:
	@command -v $(CARGO) >/dev/null || { \
	  echo "isochrome needs a Rust toolchain. Install it with: curl https://sh.rustup.rs -sSf | sh" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  echo "isochrome needs a C linker. Install it with: apt-get install -y gcc" >&2; exit 1; }
