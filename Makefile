# Everything that must hold, in one command: make test
#
# It needs a Rust toolchain and the package registries, and installs what else it
# uses: cargo-nextest; by apt-get PostgreSQL, PgBouncer, Redis and Python; and into
# the build directory, by pip and npm, the SDKs with which webhooks are signed.
# Tests start what they need on free ports and end it by id.

# The last that this toolchain is known to build.
NEXTEST = 0.9.143

# Of the library; each is to compile by itself.
FEATURES = embedded postgres redis sqlx axum

.PHONY: test lint unit doc demo bench tools

test: lint unit doc demo

lint: tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	for feature in $(FEATURES); do \
		cargo check --package onceward --no-default-features --features $$feature --locked || exit 1; \
	done
	@if command -v cargo-deny >/dev/null; then cargo deny --all-features check; else echo "cargo-deny is not installed: skipped"; fi

unit: tools
	cargo nextest run --workspace --all-features --locked

doc:
	cargo test --workspace --doc --all-features --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked

# The walk through, each step checked, with the binary that users get.
demo:
	cargo run --release --locked -- demo --exit

bench: tools
	bench/compare
	cargo run --release --locked --package onceward-stores --all-features --example pairs -- beside

tools:
	@cargo nextest --version >/dev/null 2>&1 || cargo install cargo-nextest --locked --version $(NEXTEST)
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@scripts/install-servers
	@scripts/install-sdks
