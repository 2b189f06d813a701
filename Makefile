# Runtime Watcher: make alone tells what there is to do.
#
# The modules are what `find` finds, so a new module is tested, linted and verified from its first commit on. Tools are
# built once per Go version into bin/tools/, from module files of their own (tools/*.mod): what they need never reaches
# the modules of this repository.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-print-directory

GO ?= go

# Every target may be given these: make bench BENCH=Outbox BENCHTIME=5s
ARGS ?=
BENCH ?= .
BENCHTIME ?= 1s
FUZZTIME ?= 30s
PLATFORM ?= linux/$(shell $(GO) env GOARCH)
SEED ?= $(shell date +%s)
SEEDS ?= 20
DURATION ?= 30s
SETTLE ?= 100ms
LOOK_AGAIN ?= 0s
TESTFLAGS ?=
ROTATION ?= 2m
TIMEOUT ?= 20m

MODULES := $(patsubst ./%/go.mod,%,$(sort $(shell find . -name bin -prune -o -name testdata -prune -o -name go.mod -print)))
PACKAGES := $(MODULES:%=./%/...)
TOOLS := $(CURDIR)/bin/tools/$(shell $(GO) env GOVERSION)

# The release tags of a module are <folder>/vX.Y.Z, those of the whole repository vX.Y.Z. Asking git here, and not the
# Go command, gives a version under GOFLAGS=-buildvcs=false, too. Without git it is "dev".
VERSION := $(or $(shell git describe --tags --always --dirty --match 'v[0-9]*' --match 'cmd/agent/v[0-9]*' 2>/dev/null | sed 's|^cmd/agent/||'),dev)

# Alone, not in the workspace: what is shipped holds the versions that the agent's own go.mod asks for.
BUILD_AGENT := cd cmd/agent && GOWORK=off CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

# kube-apiserver and etcd: built on the first use (about five minutes), found at once ever after. Progress goes to
# standard error. KUBEBUILDER_ASSETS, when set, wins.
WITH_ASSETS := KUBEBUILDER_ASSETS="$$($(GO) run ./test/controlplane/cmd/controlplane-assets -kubectl)" && export KUBEBUILDER_ASSETS &&
# cert-manager's controllers, likewise: two to three minutes.
WITH_ASSETS += $(GO) run ./test/certmanager/cmd/certmanager-assets >/dev/null &&

.PHONY: help
help: ## This list
	@printf 'Runtime Watcher %s\n\n' '$(VERSION)'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 } /^## / { print substr($$0, 4) }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## See it work: an API server, the agent, an operator. ARGS='...' go to the program
	@$(GO) build -o bin/quickstart/quickstart ./examples/quickstart && exec bin/quickstart/quickstart $(ARGS)

# Tests compile the agent and others, which go test's cache does not see: they ask for this hash of the sources, and so it does.
SOURCES = $(shell find core adapters listener cmd examples test -name '*.go' -not -name '*_test.go' | LC_ALL=C sort | xargs cat | cksum | tr -d ' ')

# One go test for all modules of the workspace: it shares what it compiles, keeps every core busy and closes with one
# line per package. The test cache stays on, so a second run takes what is unchanged from it.
.PHONY: test
test: ## Test every module with the race detector, against real API servers. TESTFLAGS, TIMEOUT
	@$(WITH_ASSETS) RUNTIME_WATCHER_SOURCES=$(SOURCES) $(GO) test -race -timeout $(TIMEOUT) $(TESTFLAGS) $(PACKAGES)

# One seed after the other on one API server, about a minute each. make chaos SEED=... SEEDS=1 repeats one.
.PHONY: chaos
chaos: ## Faults at random against real processes, and nothing lost: SEEDS (20) from SEED (now), DURATION of faults each (30s), SETTLE (100ms), LOOK_AGAIN (0s)
	@$(WITH_ASSETS) $(GO) test ./test/chaos -count=1 -v -run 'TestNothingIsLost|TestTheSuiteCanFail' -timeout 3h $(TESTFLAGS) \
		-parallel-seeds=false -seed=$(SEED) -seeds=$(SEEDS) -duration=$(DURATION) -settle=$(SETTLE) -look-again=$(LOOK_AGAIN)

.PHONY: soak
soak: ## A million events and an hour without control plane, scaled: memory, open files and goroutines stay flat. ARGS
	@$(GO) test ./test/soak -run Soak -count 1 -v -timeout 40m -args -events 1000000 -outage 1m -slack 4 $(ARGS)

# The test of both ends in FIPS mode is part of make test. What these suites compile is kept by the build cache.
.PHONY: fips
fips: ## Test listener, transport and contracts with Go's FIPS 140-3 module, where nothing else is allowed
	@GOFIPS140=v1.0.0 GODEBUG=fips140=only $(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) ./core/contract ./listener/... ./adapters/httpmtls/...

.PHONY: rotation
rotation: ## Rotate every leaf and CA once a second under 500 reviews/s, natively and through nginx: ROTATION (2m) each
	@$(GO) test ./test/gateway -count=1 -v -run '^TestRotation' -timeout 3h $(TESTFLAGS) -rotation '$(ROTATION)'

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Lint every module: bugs, style, formatting, and which module may import what
	@$(TOOLS)/golangci-lint run $(PACKAGES)

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## Format the code as lint wants it
	@$(TOOLS)/golangci-lint fmt $(MODULES:%=./%)

.PHONY: fuzz
fuzz: ## Fuzz every decoder of foreign bytes, FUZZTIME each (30s)
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' tools/fuzz.sh $(MODULES)

.PHONY: bench
bench: ## Measure: the benchmarks that match BENCH (all), BENCHTIME each (1s)
	@$(WITH_ASSETS) $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime '$(BENCHTIME)' -timeout 2h $(TESTFLAGS) $(PACKAGES)

# Not followed by `go work sync`, on purpose: that would raise every requirement to the highest version that any module
# here asks for, so that whoever imports core would have to take what only the end-to-end tests need.
.PHONY: tidy
tidy: ## go mod tidy in every module, until nothing changes any more
	@GO='$(GO)' tools/tidy.sh $(MODULES)

.PHONY: generate
generate: generators ## Run go generate in every module, with mockgen and controller-gen in the PATH
	@for m in $(MODULES); do (cd "$$m" && PATH="$(TOOLS):$$PATH" $(GO) generate ./...) || exit 1; done

.PHONY: generators
generators: $(TOOLS)/mockgen $(TOOLS)/controller-gen

.PHONY: verify
verify: generators ## Check what a review would: tidy, generated, formatted, each module alone. With CI=true: a clean tree
	@PATH="$(TOOLS):$$PATH" $(GO) run ./tools/cmd/verify $(ARGS) $(MODULES)

.PHONY: build
build: ## Build the agent for this machine: one static binary, bin/agent. GOOS, GOARCH, GOFIPS140
	@$(BUILD_AGENT) -o $(CURDIR)/bin/agent .
	@ls -l bin/agent

.PHONY: image
image: ## Build the image of the agent: an OCI layout in bin/image, the same digest twice. PLATFORM
	@export GOOS='$(firstword $(subst /, ,$(PLATFORM)))' GOARCH='$(word 2,$(subst /, ,$(PLATFORM)))' && $(BUILD_AGENT) -o $(CURDIR)/bin/image-root/agent .
	@$(GO) run ./tools/image -platform '$(PLATFORM)' -version '$(VERSION)' -out bin/image bin/image-root/agent

.PHONY: clean
clean: ## Remove what was built, and keep the tools and the control plane that take minutes
	@for f in bin/*; do case "$$f" in bin/tools|bin/controlplane|bin/certmanager) ;; *) rm -rf "$$f" ;; esac; done

.PHONY: distclean
distclean: ## Remove all of bin/
	@rm -rf bin

## 
## With GOFIPS140=v1.0.0 in the environment, build and image link Go's FIPS 140-3 module of that version.
## With KUBEBUILDER_ASSETS, the kube-apiserver and etcd of that directory are used, and none are built.

# Rebuilt when the versions in the module file change.
$(TOOLS)/%: tools/%.mod tools/%.sum
	@echo 'building $(@F), once: this may take a few minutes' >&2
	@mkdir -p $(@D)
	@cd tools && GOWORK=off $(GO) build -trimpath -buildvcs=false -modfile=$*.mod -o $@ tool
