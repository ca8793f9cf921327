# divvy: what a person runs. `make` alone lists the targets.
#
# Everything is built with one cargo profile (release), so RocksDB is compiled once; ccache, where it is installed,
# keeps even that for the next checkout. CARGO_TARGET_DIR may point to a directory shared by several checkouts.

SHELL := /bin/bash
export PATH := /usr/lib/ccache:$(PATH)

CARGO ?= cargo
CONFIG ?= config/example.ini
TEST_SLOW_KILLS ?= 50
FUZZ_SECONDS ?= 60
# What `make bench` passes on, such as --quick
BENCH_ARGS ?=

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: setup
setup: ## Install what the build needs (Debian and Ubuntu)
	@scripts/setup build

.PHONY: test-setup
test-setup: setup ## Install what the tests need besides: Redis's tools, Node and Python clients
	@scripts/setup test

.PHONY: build
build: setup ## Build the binary
	$(CARGO) build --release --locked

.PHONY: run
run: setup ## Build, then serve CONFIG (config/example.ini)
	$(CARGO) run --release --locked -- serve $(CONFIG)

.PHONY: check
check: fmt-check clippy test ## What CI runs: formatting, lints, tests

.PHONY: fmt-check
fmt-check: setup
	$(CARGO) fmt --check

.PHONY: clippy
clippy: setup
	$(CARGO) clippy --release --locked --all-targets -- -D warnings

.PHONY: test
test: test-setup ## All tests but the long campaigns
	$(CARGO) test --release --locked

.PHONY: test-slow
test-slow: test-setup ## The long campaigns: many kills, every fuzz target for a minute
	DIVVY_TEST_KILLS=$(TEST_SLOW_KILLS) $(CARGO) test --release --locked --test main kill::
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

.PHONY: bench-instructions
bench-instructions: setup ## Instructions per hit, by valgrind; fails when a stage got a tenth worse
	@command -v valgrind >/dev/null || { echo "install valgrind first (Debian: apt-get install valgrind)" >&2; exit 1; }
	$(CARGO) bench --locked --bench instructions

.PHONY: bench
bench: test-setup ## Compare the cost of a hit with Redis's (about ten minutes)
	$(CARGO) bench --locked --bench compare -- $(BENCH_ARGS)

.PHONY: bench-redis
bench-redis: test-setup ## Measure divvy in front of Redis, and what its memory of denials saves
	$(CARGO) bench --locked --bench compare -- --case tier $(BENCH_ARGS)
