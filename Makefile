# divvy: targets for people. `make` alone lists them.
#
# Everything is built with one cargo profile (release). scripts/libraries compiles RocksDB once a machine.

SHELL := /bin/bash

CARGO ?= cargo
# See docs/testing.md.
CHECKED = RUSTC_WORKSPACE_WRAPPER='$(CURDIR)/scripts/rustc-for-tests' $(CARGO)
CARGO_TEST = $(CHECKED) test --release --locked --features full
CONFIG ?= config/example.ini
# What `make test-slow` does: see docs/testing.md. TEST_SEED= gives it the seed that an earlier run printed.
TEST_SLOW_KILLS ?= 1000
TEST_SLOW_SCHEDULES ?= 200000
TEST_SLOW_KILL_LANES ?= 6
TEST_SLOW_POWER_DISKS ?= 1000
TEST_SLOW_STORM_SECONDS ?= 60
TEST_SLOW_USAGE_KILLS ?= 400
TEST_SLOW_LEASE_KILLS ?= 100
TEST_SLOW_OPERATIONS ?= 1000000
TEST_SLOW_JUDGED ?= 1000
TEST_SLOW_OUTAGES ?= 2
TEST_SLOW_FAILOVERS ?= 100
TEST_SLOW_TOP_HITS ?= 20000000
TEST_SLOW_OUTAGE_SECONDS ?= 60
TEST_SLOW_SHARE_REQUESTS ?= 4
TEST_SLOW_SHARE_WORLDS ?= 10000
TEST_SEED ?=
# Which tests `make test` runs, all by default, and how many of the slowest it prints
ONLY ?=
SLOWEST ?= 10
# Schedules that the model checker tries for each property
SCHEDULES ?= 2000
FUZZ_SECONDS ?= 60
# Features of the build, such as --no-default-features: without RocksDB there is no C++ to compile. `make run` builds what
# serving needs, and `make build` what packages contain.
CARGO_FLAGS ?=
BUILD_FLAGS = $(CARGO_FLAGS) --features packaging
# Where `make install` installs, below DESTDIR
PREFIX ?= /usr/local
DESTDIR ?=
# What `make bench` passes on, such as --quick
BENCH_ARGS ?=

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: setup
setup: ## Install what the build needs (Debian and Ubuntu)
	@scripts/setup build

.PHONY: libraries
libraries: setup ## Compile RocksDB and the other libraries, once a machine
	$(if $(filter --no-default-features,$(CARGO_FLAGS)),$(if $(findstring rocksdb,$(CARGO_FLAGS)),@scripts/libraries),@scripts/libraries)

.PHONY: test-setup
test-setup: libraries ## Install what the tests need besides: Redis's tools, Chromium, Node and Python clients
	@scripts/setup test

.PHONY: build
build: libraries ## Build the programs
	$(CARGO) build --release --locked $(BUILD_FLAGS)

.PHONY: run
run: libraries ## Build, then serve CONFIG (config/example.ini)
	$(CARGO) run --release --locked $(CARGO_FLAGS) -- serve $(CONFIG)

.PHONY: run-memory
run-memory: ## A first look, without RocksDB and not optimized: counters are in memory, the build takes three minutes
	$(CARGO) run --locked --no-default-features --features ui -- serve $(CONFIG) --store memory

.PHONY: check
check: ## What CI runs: formatting, lints, features, dependencies, tests, docs, instructions
	@MAKE="$(MAKE)" scripts/check fmt-check size clippy features rustdoc deny crates rocksdb-check test docs-check bench-instructions

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --all --check

.PHONY: size
size: ## Compare each crate's lines with its budget
	@scripts/size

.PHONY: clippy
clippy: libraries
	$(CARGO) clippy --release --locked --workspace --all-targets --features full -- -D warnings
	$(CARGO) clippy --release --locked --workspace --exclude divvy-rocks --all-targets --no-default-features -- -D warnings
	$(CARGO) clippy --release --locked --manifest-path fuzz/Cargo.toml -- -D warnings

# `make clippy` checks the build without any feature.
.PHONY: features
features: libraries ## Check that each feature compiles alone
	$(CARGO) clippy --release --locked --no-default-features --features packaging -- -D warnings
	$(CARGO) clippy --release --locked --no-default-features --features rocksdb -- -D warnings
	$(CARGO) clippy --release --locked --no-default-features --features ui -- -D warnings

.PHONY: rustdoc
rustdoc: libraries ## Check the documentation in the code: its links and its Markdown
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --features full --no-deps --document-private-items

.PHONY: deny
deny: ## Check the licenses and sources of dependencies, and that there are no duplicates
	@scripts/setup deny
	tests/clients/tools/cargo-deny --locked --workspace check --deny warnings licenses bans sources

.PHONY: rocksdb-check
rocksdb-check: libraries ## Check that RocksDB is as its crate compiles it, with checksums in hardware
	@scripts/libraries check

.PHONY: test
test: test-setup ## All tests but the long campaigns, or those whose path contains ONLY; prints the SLOWEST (10)
	@DIVVY_TEST_SCHEDULES=$(SCHEDULES) CARGO_TEST="$(CARGO_TEST)" scripts/test --slowest $(SLOWEST) $(ONLY)

.PHONY: docs
docs: libraries ## Regenerate tables, recorded replies and expected reports from the flags and the code
	DIVVY_TEST_WRITE_DOCS=1 $(CARGO_TEST) --package divvy --package divvy-core --package divvy-limiter --lib -- config:: architecture_page_shows_the_table
	DIVVY_TEST_WRITE_DOCS=1 $(CARGO_TEST) --package divvy --test main -- configuration:: pages:: wire::

.PHONY: screenshots
screenshots: build ## Take the pictures of the live page in docs/images
	@scripts/screenshots

.PHONY: docs-check
docs-check: build ## Check the links, rules, commands and pictures in the documentation
	@scripts/docs-check --self-test
	@scripts/docs-check
	@scripts/pictures --check

.PHONY: pictures
pictures: build ## Draw the pictures in the documentation
	@scripts/pictures

.PHONY: test-unit
test-unit: ## The tests that need nothing but cargo: no RocksDB, no other programs
	$(CHECKED) test --release --locked --workspace --exclude divvy-rocks --no-default-features

.PHONY: model
model: libraries ## Check the commit path on a model checker, thousands of schedules
	DIVVY_TEST_SCHEDULES=$(SCHEDULES) $(CARGO_TEST) --workspace --lib tests::model

.PHONY: test-slow
test-slow: SCHEDULES = $(TEST_SLOW_SCHEDULES)
test-slow: test-setup model kills judge power-cuts outages failovers storms attacks shares top calendars ## The long campaigns: kills, power cuts, failing disks, storms, fuzzing
	@$(MAKE) --no-print-directory fuzz

.PHONY: fuzz
fuzz: libraries ## Run each fuzz target for FUZZ_SECONDS
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

# One after the other, each alone on the machine, and with its output.
CAMPAIGN = $(if $(TEST_SEED),DIVVY_TEST_SEED=$(TEST_SEED)) $(CARGO_TEST) --test main --
.PHONY: kills judge power-cuts outages failovers storms attacks shares top calendars
kills:
	DIVVY_TEST_KILLS=$(TEST_SLOW_KILLS) DIVVY_TEST_KILL_LANES=$(TEST_SLOW_KILL_LANES) $(CAMPAIGN) --nocapture kill::
	DIVVY_TEST_USAGE_KILLS=$(TEST_SLOW_USAGE_KILLS) $(CAMPAIGN) --nocapture kills::usage
	DIVVY_TEST_LEASE_KILLS=$(TEST_SLOW_LEASE_KILLS) $(CAMPAIGN) --nocapture kills::leases
	DIVVY_TEST_OPERATIONS=$(TEST_SLOW_OPERATIONS) $(CAMPAIGN) --nocapture conformance::campaign
judge:
	DIVVY_TEST_JUDGED=$(TEST_SLOW_JUDGED) $(CAMPAIGN) --nocapture judge::
power-cuts:
	DIVVY_TEST_POWER_DISKS=$(TEST_SLOW_POWER_DISKS) $(CAMPAIGN) --nocapture power::cuts::
	DIVVY_TEST_POWER_DISKS=$(TEST_SLOW_POWER_DISKS) DIVVY_TEST_POWER_NAMES=loose $(CAMPAIGN) --nocapture power::cuts::
outages:
	DIVVY_TEST_OUTAGES=$(TEST_SLOW_OUTAGES) DIVVY_TEST_OUTAGE_SECONDS=$(TEST_SLOW_OUTAGE_SECONDS) $(CAMPAIGN) --nocapture power::failing::
failovers:
	DIVVY_TEST_FAILOVERS=$(TEST_SLOW_FAILOVERS) $(CAMPAIGN) --nocapture --test-threads 1 redis_replication::failover
storms:
	DIVVY_TEST_STORM_SECONDS=$(TEST_SLOW_STORM_SECONDS) $(CAMPAIGN) --nocapture storms::
shares:
	DIVVY_TEST_SHARE_REQUESTS=$(TEST_SLOW_SHARE_REQUESTS) DIVVY_TEST_SHARE_WORLDS=$(TEST_SLOW_SHARE_WORLDS) $(CARGO_TEST) --package divvy-store --lib -- --nocapture shares::
attacks:
	DIVVY_TEST_EXHAUSTION=full $(CAMPAIGN) --nocapture exhaustion::attacks_at_full_scale_are_answered_in_bounded_memory
calendars:
	DIVVY_TEST_ZONES=all $(CAMPAIGN) --nocapture calendar::boundaries_equal
top:
	DIVVY_TEST_TOP_HITS=$(TEST_SLOW_TOP_HITS) $(CARGO_TEST) --workspace --lib -- --nocapture heavy_hitters::tests::recall

.PHONY: bench-instructions
bench-instructions: libraries ## Instructions and cache misses per hit, by valgrind; fails if one rises by a tenth
	@scripts/setup valgrind
	$(CARGO) bench --locked --bench instructions

.PHONY: bench
bench: generator ## Compare the cost of a hit with that of Redis and other rate limiters
	$(COMPARE)

# What loads the servers. cargo would not build it for a benchmark of another package.
.PHONY: generator
generator: test-setup
	$(CARGO) build --release --locked --bin divvy-bench

COMPARE = $(CARGO) bench --locked --bench compare -- $(BENCH_ARGS)
.PHONY: plots
plots: generator ## Measure CPU, latency and memory next to Redis, and draw the plots in docs/performance.md
	$(COMPARE) --case single --case pipelined --json $(CURDIR)/benches/plots/cpu.json
	$(COMPARE) --case offered-load --json $(CURDIR)/benches/plots/latency.json
	$(COMPARE) --case memory --json $(CURDIR)/benches/plots/memory.json
	scripts/pictures cpu latency memory

.PHONY: bench-redis
bench-redis: generator ## Measure divvy in front of Redis, and what the denial cache saves
	$(COMPARE) --case tier

# Where cargo builds, and the package that `make deb` makes.
TARGET = $(or $(CARGO_TARGET_DIR),target)/release
DEB = $(TARGET)/../debian/divvy.deb

.PHONY: package-files
package-files: build
	scripts/package-files $(TARGET) $(TARGET)/package

.PHONY: install
install: package-files ## Install the programs, manual pages, completions and systemd units below PREFIX
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/package/divvy $(TARGET)/package/divvy-bench $(TARGET)/package/divvy-crowdsec
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(TARGET)/package/man/*.1.gz $(DESTDIR)$(PREFIX)/share/man/man1/
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(TARGET)/package/bash/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(TARGET)/package/zsh/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d $(TARGET)/package/fish/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system packaging/systemd/*

# The notices go with every program that others get. Where the git repository is missing, the time is that of the archive.
NOTICES = THIRD-PARTY-NOTICES.txt
COMMIT_TIME = $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)

.PHONY: notices
notices: ## Write the licenses of all code in the programs to THIRD-PARTY-NOTICES.txt
	@scripts/setup notices
	scripts/notices $(NOTICES)

.PHONY: deb
deb: package-files notices ## Build the Debian package
	@scripts/libraries release
	@scripts/setup deb
	SOURCE_DATE_EPOCH=$(COMMIT_TIME) $(CARGO) deb --no-build --no-strip --locked --output $(DEB)
	@echo $(DEB)

.PHONY: test-deb
test-deb: deb ## Install the Debian package with dpkg, use it and purge it (as root)
	packaging/debian/try $(DEB)

# A release: see docs/releasing.md.
DIST = $(TARGET)/../dist

.PHONY: dist
dist: deb ## Make the files of a release: sources, the programs, the Debian package, and their checksums
	MAKE="$(MAKE)" scripts/dist $(DEB) $(DIST)

.PHONY: test-dist
test-dist: dist ## Unpack the files of a release, check them, and serve a hit with the binary
	packaging/archives/try $(DIST)

.PHONY: crates
crates: libraries ## Package the crates as for crates.io, without a warning, and check that they compile
	scripts/crates
