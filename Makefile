# Everything that must hold, in one command: make test
#
# It needs a Rust toolchain and the package registries, and installs what else it
# uses: cargo-nextest; by apt-get PostgreSQL, PgBouncer, Redis and Python; and into
# the build directory, by pip and npm, the SDKs that sign the tests' webhooks.
# Tests start what they need on free ports and end it by id.

# The last versions that this toolchain is known to build.
NEXTEST = 0.9.143
DENY = 0.20.2

# Features of the library; each must compile by itself.
FEATURES = embedded postgres redis sqlx axum

# The published crates, each after those that it needs.
PUBLISHED = onceward-core onceward-webhooks onceward-stores onceward-http onceward onceward-gateway onceward-cli

.PHONY: test lint unit doc demo bench bench-crash profile audit package tools

test: lint unit doc demo

lint: tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	for feature in $(FEATURES); do \
		cargo check --package onceward --no-default-features --features $$feature --locked || exit 1; \
	done
	@if command -v cargo-deny >/dev/null; then cargo deny --all-features check; else echo "cargo-deny is not installed: skipped (make audit installs it)"; fi

unit: tools
	cargo nextest run --workspace --all-features --locked

doc:
	cargo test --workspace --doc --all-features --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked

# The walk-through of README's first command, each step checked, with the binary
# that the tests have built already: a release build would take as long again.
demo:
	cargo test --workspace --all-features --locked --no-run --quiet
	"$${CARGO_TARGET_DIR:-target}/debug/onceward" demo --exit

bench: tools
	bench/compare
	cargo run --profile dist --locked --package onceward-stores --all-features --example pairs -- beside

# How often `bench-crash` kills the gateway.
KILLS = 500

# A gateway killed again and again under load: nothing runs twice, nothing acknowledged is lost.
bench-crash:
	ONCEWARD_KILLS=$(KILLS) cargo test --release --locked --package onceward-cli --test it -- --exact --nocapture \
		crash::storm::killed_again_and_again_under_load_nothing_runs_twice_and_nothing_is_forgotten

# A flame graph of each scenario in target/profile, and the ten symbols that take most of its time.
profile: tools
	bench/profile

# Advisories, licences, sources and duplicate versions of all dependencies.
audit:
	@command -v cargo-deny >/dev/null || cargo install cargo-deny --locked --version $(DENY)
	cargo deny --all-features check

# The archives that would be published, each built from its own contents.
package:
	cargo package --locked $(addprefix --package ,$(PUBLISHED))

tools:
	@# Unoptimised and without self-update it builds in a third of the time.
	@cargo nextest --version >/dev/null 2>&1 || cargo install cargo-nextest --locked --version $(NEXTEST) --debug --no-default-features --features default-no-update
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@scripts/install-servers
	@scripts/install-sdks
