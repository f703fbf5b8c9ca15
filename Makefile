# `make` alone lists the targets. Each one gets the machine ready by itself, see
# internal/build/setup.sh.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := bin/muster
# The commit is in the binary wherever git can tell it.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
# Where goroutines matter; real instances are slow under the race detector and
# have their own tests.
RACE := ./agent/artifact ./agent/check ./agent/deploy ./agent/network ./agent/proc ./cli/render ./client/... ./graph/... \
	./internal/simulation ./registration ./registry/... ./server

.PHONY: help setup run build man test test-v2 race fuzz soak bench lint generate check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## get this machine ready for everything below: as root install, else say what to install
	@internal/build/setup.sh test

run: ## build, start a one-machine cluster and launch an instance in it; stays until Ctrl-C
	@internal/build/setup.sh run
	@$(MAKE) --no-print-directory $(BIN)
	@exec $(BIN) dev --launch

build: ## build bin/muster
	@internal/build/setup.sh run
	@$(MAKE) --no-print-directory $(BIN)

# Go knows by itself what is out of date.
.PHONY: $(BIN)
$(BIN):
	go build -buildvcs=$(VCS) -o $(BIN) ./cmd/muster

man: ## write the manual pages to bin/man1
	@$(MAKE) --no-print-directory build
	@$(BIN) man bin/man1

test: ## run all tests that this machine can run; those that it can't are named
	@internal/build/setup.sh test
	@internal/build/test.sh

test-v2: ## run the tests of instances on pure cgroup v2, in a virtual machine: minutes, as root
	@internal/build/setup.sh test
	@internal/build/v2/run.sh

race: ## run the tests where goroutines matter under the race detector
	@internal/build/setup.sh test
	go test -race -timeout=15m $(RACE)
	go test -race -timeout=15m -run='^Test(Watch|Server)_' ./cmd/muster

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@internal/build/setup.sh run
	@internal/build/fuzz.sh $(or $(FUZZTIME),10s)

soak: ## the long version: each fuzz target for 1m, 1,000 seeds of the simulation, then the race tests 10 times over
	@internal/build/setup.sh test
	@internal/build/fuzz.sh $(or $(FUZZTIME),60s)
	go test ./internal/simulation -run='TestSimulation$$' -timeout=3h -simulation.seeds=$(or $(SEEDS),1000)
	go test -race -count=10 -timeout=2h $(RACE)

bench: ## print a table of the benchmarks' figures
	@internal/build/setup.sh run
	@internal/build/bench.sh

lint: ## formatting, vet, staticcheck and the rules of the house
	@unformatted=$$(go tool gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted: run \`go tool gofumpt -w\` on:" $$unformatted; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	go test ./internal/deptest

generate: ## write the generated code anew: gqlgen, genqlient, the console
	@internal/build/setup.sh test
	@internal/build/generated.sh

check: ## what CI asks before the tests: generated code is current, and lint
	@internal/build/setup.sh test
	@internal/build/generated.sh --check
	@$(MAKE) --no-print-directory lint

clean: ## remove what a build leaves; the data of `make run` stays in .muster
	rm -rf bin server/console/ui/node_modules
