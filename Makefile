# Runtime Watcher: make without a target lists all targets.
#
# The list of modules is derived from the go.mod files, so every target covers a new module at once. Tools are built once
# per Go version into bin/tools/. Each has a module file of its own (tools/*.mod), so that its dependencies stay out of
# the modules of this repository.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-print-directory

GO ?= go

# Variables for targets: make bench BENCH=Outbox BENCHTIME=5s
ARGS ?=
CONTRIB ?=
BENCH ?= .
BENCHTIME ?= 1s
FUZZTIME ?= 30s
KILLS ?= 20
LEASE ?= 15s
IMAGE ?= bin/image
PLATFORMS ?= linux/amd64 linux/arm64
SEED ?= $(shell date +%s)
SEEDS ?= 20
DURATION ?= 30s
N ?= 1000
SETTLE ?= 100ms
RESEND_AFTER ?= 3s
TESTFLAGS ?=
ROTATION ?= 2m
ONLY ?=
OUT ?= bin/manifests
RACE ?=
TIMEOUT ?= 40m

MODULES := $(sort $(patsubst ./%,%,$(patsubst %/go.mod,%,$(shell find . -name bin -prune -o -name testdata -prune -o -name go.mod -print))))
PACKAGES := $(MODULES:%=./%/...)
# test/bench has programs that measure, for a machine that runs nothing else. make test leaves them out.
TESTED := $(filter-out ./test/...,$(PACKAGES)) $(patsubst %,./%...,$(filter-out test/bench/,$(wildcard test/*/)))
TOOLS := $(CURDIR)/bin/tools/$(shell $(GO) env GOVERSION)

# The release tags of a module are <folder>/vX.Y.Z, that of the module in the root folder vX.Y.Z. The version comes from git, so
# that GOFLAGS=-buildvcs=false does not remove it. Without git it is "dev".
VERSION := $(or $(shell git describe --tags --always --dirty --match 'v[0-9]*' --match 'cmd/agent/v[0-9]*' 2>/dev/null | sed 's|^cmd/agent/||'),dev)

# GOWORK=off: the shipped agent has the versions of its own go.mod.
BUILD_AGENT := cd cmd/agent && GOWORK=off CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

# kube-apiserver and etcd: downloaded with setup-envtest where that is possible, built from source elsewhere.
# KUBEBUILDER_ASSETS overrides them. kubectl takes another minute of two cores, so only those who need it ask for it.
ASSETS = KUBEBUILDER_ASSETS="$$(GO='$(GO)' SETUP_ENVTEST='$(TOOLS)/setup-envtest' tools/assets.sh $(1))" && export KUBEBUILDER_ASSETS &&
WITH_API_SERVER := $(call ASSETS)
WITH_KUBECTL := $(call ASSETS,-kubectl)
# With cert-manager's controllers. The first use builds them in two to three minutes.
WITH_ASSETS := $(WITH_KUBECTL) $(GO) run ./test/lab/cmd/assets -certmanager >/dev/null &&

.PHONY: help
help: ## This list
	@printf 'Runtime Watcher %s\n\n' '$(VERSION)'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 } /^## / { print substr($$0, 4) }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## See it work: an API server, the agent, an operator. ARGS='...' go to the program
	@$(if $(findstring serve,$(ARGS)),$(WITH_KUBECTL),$(WITH_API_SERVER)) $(GO) build -o bin/quickstart/quickstart ./examples/quickstart && exec bin/quickstart/quickstart $(ARGS)

.PHONY: drills
drills: ## Run the ten drills of docs/operations/drills.md, and print after how long the page shows each
	@$(WITH_KUBECTL) $(GO) test ./examples/quickstart -count=1 -v -run '^TestDrills$$' $(TESTFLAGS) -all-drills

.PHONY: demo-lifecycle
demo-lifecycle: ## See a meta operator work: control plane, two runtimes, cert-manager, agents. ARGS='...' go to the program
	@echo 'building the demo'
	@$(GO) build -o bin/lifecyclemanager/demo ./examples/lifecyclemanager/demo && exec bin/lifecyclemanager/demo $(ARGS)

# One go test for all modules of the workspace shares compiled packages. Tests of real processes wait for more than half of
# their time, so four packages run in parallel. With the race detector, which takes five to ten times the processor time of
# what it looks at, three do. The test cache stays on, so a second run repeats only changed packages: internal/testcache
# shows it files outside of the module of a test. Lint vets all packages.
PARALLEL = $(if $(RACE),3,4)
.PHONY: test
test: $(TOOLS)/helm ## Test every module against real API servers. RACE=-race with the race detector, as CI. TESTFLAGS, TIMEOUT
	@$(WITH_ASSETS) $(GO) test $(RACE) -vet=off -p $(PARALLEL) -timeout $(TIMEOUT) $(TESTFLAGS) $(TESTED)

# The modules whose tests start no API server. They need neither root nor another program.
LIGHT := . adapters/admission adapters/httpmtls adapters/informer adapters/multicluster adapters/natsjetstream adapters/opentelemetry adapters/prometheus agent tools

.PHONY: unit
unit: ## Test the modules that need no API server, no root and no other program. TESTFLAGS
	@$(GO) test -short -timeout 10m $(TESTFLAGS) $(LIGHT:%=./%/...)

.PHONY: darwin
darwin: ## Vet these modules for macOS
	@GOOS=darwin CGO_ENABLED=0 $(GO) vet $(LIGHT:%=./%/...)

# The workspace tests with the newest versions. Here each library has those that its go.mod requires: the oldest ones that
# an importer may have.
LIBRARIES := $(filter-out cmd/% examples test tools,$(MODULES))

.PHONY: floors
floors: ## Test the modules that operators import with the oldest versions of Kubernetes' libraries that they require
	@failed=; for m in $(LIBRARIES); do (cd "$$m" && GOWORK=off $(GO) test -short -timeout 15m $(TESTFLAGS) ./...) || failed=1; done; [ -z "$$failed" ]

# CI asks for the Kubernetes versions that runtimes have.
.PHONY: kubernetes
kubernetes: ## Test the agent with real API servers of a version that is downloaded: ENVTEST_VERSION=1.34.x
	@$(WITH_API_SERVER) $(GO) test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./test/e2e ./test/informer ./test/subresources

.PHONY: conformance
conformance: ## Judge our ends and a sender in Python by the rules of contract v3, and find seeded faults. The program: go build ./cmd/conformance
	@$(GO) test ./cmd/conformance ./internal/conformance ./test/conformance -count=1 -v -timeout $(TIMEOUT) $(TESTFLAGS)

# Seeds run one after the other on one API server, about a minute each. make chaos SEED=... SEEDS=1 repeats one.
.PHONY: chaos
chaos: ## Inject random faults into real processes and account for every write: SEEDS (20) from SEED (now), DURATION of faults each (30s), SETTLE (100ms), RESEND_AFTER (3s), ARGS='-source informer', ARGS='-source kept' or ARGS='-transport nats'
	@$(WITH_ASSETS) $(GO) test ./test/loss -count=1 -v -run 'TestNothingIsLost|TestTheSuiteCanFail' -timeout 3h $(TESTFLAGS) \
		-parallel-seeds=false -seed=$(SEED) -seeds=$(SEEDS) -duration=$(DURATION) -settle=$(SETTLE) -resend=$(RESEND_AFTER) $(ARGS)

# Each worker has one processor, so that a seed repeats itself as far as it can. A failing seed prints its plan, the
# smallest plan that was found to fail, and the file with its log. See docs/maintainers/tests.md.
SIMULATE := $(GO) test ./test/simulation -count=1 -v -timeout 12h
simulate: SEEDS = 5000
.PHONY: simulate
simulate: ## Simulate agents, operators and faults in virtual time, and judge what happens: SEEDS (5000) from SEED (now)
	@$(SIMULATE) -run '^Test(Simulation|Found|Isolation)$$' $(TESTFLAGS) -seed=$(SEED) -seeds=$(SEEDS) -workers=$$(getconf _NPROCESSORS_ONLN)

simulate-mutants: SEEDS = 2000
.PHONY: simulate-mutants
simulate-mutants: ## Put faults into copies of the code, and print after how many of SEEDS (2000) the simulation finds each. ARGS='-only fleet'
	@$(GO) test ./test/simulation/mutants -count 1 -v -timeout 24h -args -seeds=$(SEEDS) -only=. $(ARGS)

# It needs a file for each runtime in each of two processes, and raises the soft limit itself. See docs/maintainers/measurements.md.
.PHONY: fleet
fleet: ## Play N (1000) runtimes against a real operator, and print a table. ARGS='-scenario storm'
	@$(WITH_API_SERVER) $(GO) test ./test/bench/fleetlab -run '^TestFleet$$' -count 1 -v -timeout 12h -args -n $(N) $(ARGS)

.PHONY: soak
soak: ## Check that memory, open files and goroutines stay flat over a million events and an outage of an hour, scaled. ARGS
	@$(GO) test ./test/bench/soak -run Soak -count 1 -v -timeout 40m -args -events 1000000 -outage 1m -slack 4 $(ARGS)

# The test of both ends in FIPS mode is part of make test. The build cache keeps compiled packages.
.PHONY: fips
fips: ## Test listener, transport and contracts with Go's FIPS 140-3 module and no other cryptography
	@GOFIPS140=v1.0.0 GODEBUG=fips140=only $(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) ./core/contract ./keys/... ./listener/... ./adapters/httpmtls/...

# promtool is in the Debian package prometheus. Without it, the cases of the alerts are skipped.
.PHONY: rules
rules: ## Test metrics reference, alerts and dashboards, against a real agent and operator. ARGS=-update writes the generated files
	@$(WITH_ASSETS) $(GO) test ./test/observability -count=1 -v $(TESTFLAGS) -step=1 $(ARGS)

.PHONY: rotation
rotation: ## Rotate every leaf and the CA while objects are written, natively and through nginx: ROTATION (2m) each
	@$(WITH_ASSETS) $(GO) test ./test/loss -count=1 -v -run '^TestRotation' -timeout 3h $(TESTFLAGS) -rotation '$(ROTATION)'

# A kill takes a little longer than the lease.
.PHONY: replicas
replicas: ## Kill the leader of three replicas KILLS (20) times while objects are written: LEASE (15s)
	@$(WITH_ASSETS) $(GO) test ./test/loss -count=1 -v -run TestKilledLeader -timeout 3h $(TESTFLAGS) -kills $(KILLS) -lease $(LEASE)

# The formatters of golangci-lint run as linters, so that lint also reports what make fmt would change.
.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/vale $(TOOLS)/actionlint ## Lint every module and the workflows: bugs, style, formatting, imports, and prose
	@failed=; $(TOOLS)/golangci-lint run $(PACKAGES) || failed=1; { $(PROSE); } || failed=1; \
		$(TOOLS)/actionlint || failed=1; [ -z "$$failed" ]

# The rules are in tools/prose: banned words, sentences of at most 30 words, headings, comments of at most 100 columns.
# The first command tests them.
PROSE = $(GO) test ./tools/prose -vale $(TOOLS)/vale && VALE=$(TOOLS)/vale tools/prose.sh

.PHONY: prose
prose: $(TOOLS)/vale ## Lint Markdown, comments and messages: ARGS='core docs/design.md' for these paths only
	@$(PROSE) $(ARGS)

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## Format the code as lint requires
	@$(TOOLS)/golangci-lint fmt $(MODULES:%=./%)

.PHONY: fuzz
fuzz: ## Fuzz every decoder of untrusted bytes, FUZZTIME each (30s)
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' tools/fuzz.sh $(MODULES)

# gremlins runs the tests of the mutant's package only. FOUND is the least share in percent, of what a package finds itself.
# The goal is 90.
MUTANTS ?= core/contract core/fleet core/intake core/outbox core/watch listener keys adapters/httpmtls adapters/natsjetstream
FOUND ?= 60
.PHONY: mutants
mutants: $(TOOLS)/gremlins ## Mutate the syntax tree of MUTANTS (core, listener, keys, transports). Fails if less than FOUND percent (60) are found
	@tools/mutants.sh $(TOOLS)/gremlins $(FOUND) $(MUTANTS)

# It also drops statements, defers and operands, and swaps arguments, which gremlins does not.
.PHONY: sample-mutants
sample-mutants: ## Try a random sample of faults in the syntax of PACKAGE: ARGS='-seed 1 -n 20'
	@$(GO) run ./tools/cmd/mutate $(ARGS) $(PACKAGE)

.PHONY: bench
bench: ## Run the benchmarks that match BENCH (all), BENCHTIME each (1s)
	@$(WITH_ASSETS) $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime '$(BENCHTIME)' -timeout 2h $(TESTFLAGS) $(PACKAGES)

# The verdict is about bytes and allocations, as in make verify. Times are for a machine that runs nothing else.
.PHONY: bench-compare
bench-compare: $(TOOLS)/benchstat ## Compare the paths of an event with tools/bench-baseline.txt. ARGS=-update agrees
	@mkdir -p bin && PATH="$(TOOLS):$$PATH" $(GO) run ./tools/cmd/bench $(ARGS)

# Without `go work sync`, which would raise every requirement to the highest version in the workspace. Importers of core
# would then need the versions of the end-to-end tests.
# When make consumer asks for it, VERSION=HEAD requires the siblings at the current commit, which main must keep.
.PHONY: tidy
tidy: ## Run go mod tidy in every module until no file changes. VERSION=v0.1.0 (and CONTRIB), or HEAD, requires the siblings at that version
	@GO='$(GO)' CONTRIB='$(CONTRIB)' VERSION='$(if $(filter command line,$(origin VERSION)),$(VERSION))' tools/tidy.sh $(MODULES)

.PHONY: generate
generate: generators ## Run go generate in every module, with mockgen and controller-gen in the PATH
	@for m in $(MODULES); do (cd "$$m" && PATH="$(TOOLS):$$PATH" $(GO) generate ./...) || exit 1; done

.PHONY: generators
generators: $(TOOLS)/mockgen $(TOOLS)/controller-gen

.PHONY: verify
verify: generators ## Check that all is tidy, generated and agreed, and each module builds alone. CI=true also requires a clean tree. ONLY='tidy alone' runs these checks
	@GO='$(GO)' ONLY='$(ONLY)' PATH="$(TOOLS):$$PATH" tools/verify.sh $(MODULES)

# The first build of our modules in a module cache of others takes about a minute, later ones 20 s. It needs no network
# when the module cache is warm.
.PHONY: consumer
consumer: ## Import a commit and a release of all modules as others do, from a clone
	@$(GO) run ./tools/cmd/consumer

.PHONY: count
count: ## Count the exported names of each module. ARGS=-names lists exported names without user, ARGS=-update agrees to new names
	@$(GO) run ./tools/cmd/count $(ARGS) $(MODULES)

.PHONY: build
build: ## Build the agent for this machine: one static binary, bin/agent. GOOS, GOARCH, GOFIPS140
	@$(BUILD_AGENT) -o $(CURDIR)/bin/agent .
	@ls -l bin/agent

.PHONY: image
image: ## Build the image of the agent: an OCI layout with SBOMs in IMAGE (bin/image), archives for docker load beside it. PLATFORMS
	@for p in $(PLATFORMS); do (export GOOS="$${p%%/*}" GOARCH="$${p#*/}" && $(BUILD_AGENT) -o "$(CURDIR)/$(IMAGE)-root/$$p/agent" .) || exit 1; done
	@$(GO) run ./tools/image -version '$(VERSION)' -revision "$$(git rev-parse HEAD)" -created "$$(git log -1 --format=%ct)" \
		$(if $(ENV_FILE),-env-file '$(ENV_FILE)') -out '$(IMAGE)' -archives '$(IMAGE)-archives' $(foreach p,$(PLATFORMS),'$(p)=$(IMAGE)-root/$(p)/agent')

# macOS has other programs. GNU tar is gtar there: brew install gnu-tar.
SHA256 := $(or $(shell command -v sha256sum),shasum -a 256)
TAR := $(or $(shell command -v gtar),tar)

# The clusters are those of docs/guide/quick-start.md: the operator runs in fleet, and the agent in blue.
FLEET ?= fleet
BLUE ?= blue
.PHONY: kind-load
kind-load: ## Build the images of the quick start, and load them into the kind clusters FLEET (fleet) and BLUE (blue)
	@$(MAKE) image VERSION=dev PLATFORMS="linux/$$($(GO) env GOARCH)"
	@kind load image-archive "bin/image-archives/agent-linux-$$($(GO) env GOARCH).tar" --name '$(BLUE)'
	@cd examples && CGO_ENABLED=0 GOOS=linux $(GO) build -o ../bin/ownnames/ownnames ./ownnames
	@docker build -t ownnames:dev -f examples/ownnames/Dockerfile bin/ownnames
	@kind load docker-image ownnames:dev --name '$(FLEET)'

# The files of a release beside the tags: the image as an OCI layout and as archives, the SBOMs in it, the charts, the
# manifests, the program that judges both ends of contract v3, and the checksums of all.
.PHONY: dist
dist: image $(TOOLS)/helm manifests ## Make the files of a release in bin/dist, with their checksums: VERSION
	@rm -rf bin/dist && mkdir -p bin/dist
	@$(TAR) -C bin -czf 'bin/dist/image-$(VERSION).oci.tar.gz' --sort=name --mtime=@0 --owner=0 --group=0 '$(notdir $(IMAGE))'
	@cp $(IMAGE)-archives/*.tar bin/dist
	@for c in deploy/charts/*/; do $(TOOLS)/helm package "$$c" --version '$(VERSION:v%=%)' --app-version '$(VERSION)' --destination bin/dist >/dev/null || exit 1; done
	@for p in $(PLATFORMS); do GOOS="$${p%%/*}" GOARCH="$${p#*/}" GOWORK=off CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' \
		-o "bin/dist/runtime-watcher-conformance-$(VERSION)-$${p%%/*}-$${p#*/}" ./cmd/conformance || exit 1; done
	@$(TAR) -C bin -czf 'bin/dist/manifests-$(VERSION).tar.gz' --sort=name --mtime=@0 --owner=0 --group=0 '$(notdir $(OUT))'
	@cd bin/dist && $(SHA256) * >checksums.txt && cat checksums.txt

# kubectl, which renders the manifests, comes with the API server.
.PHONY: dist-check
dist-check: $(TOOLS)/helm ## Unpack, verify and start the files of make dist, and install them from a registry on this machine: VERSION
	@$(WITH_KUBECTL) KUBECTL="$$KUBEBUILDER_ASSETS/kubectl" HELM='$(TOOLS)/helm' SHA256='$(SHA256)' VERSION='$(VERSION)' tools/dist-check.sh
	@$(GO) run ./tools/cmd/registry -helm '$(TOOLS)/helm' -image '$(IMAGE)' -charts bin/dist -version '$(VERSION)'

# It needs root, because each pod gets a network namespace. make test does the same with an image for this machine only.
.PHONY: dist-install
dist-install: $(TOOLS)/helm ## Install the files of make dist with helm, from a registry on this machine into a real API server: VERSION
	@$(WITH_KUBECTL) $(GO) test ./test/controlplane/charts -count=1 -v -run '^TestAReleaseIsInstalled$$' -timeout $(TIMEOUT) $(TESTFLAGS) \
		-dist '$(CURDIR)/bin/dist' -image '$(CURDIR)/$(IMAGE)' -version '$(VERSION)'

.PHONY: push-charts
push-charts: $(TOOLS)/helm ## Push the charts of make dist as OCI artefacts: REGISTRY, such as oci://registry.example/charts, ARGS='--registry-config …' with a login
	@for c in bin/dist/*.tgz; do $(TOOLS)/helm push "$$c" '$(REGISTRY)' $(ARGS) || exit 1; done

.PHONY: image-fips
image-fips: ## Build the image with Go's FIPS 140-3 module, in bin/image-fips
	@GOFIPS140=v1.0.0 $(MAKE) image IMAGE=bin/image-fips VERSION='$(VERSION)-fips'

.PHONY: image-dropin
image-dropin: ## Build the image with the defaults for the Deployment of kyma-project/runtime-watcher, in bin/image-dropin
	@$(MAKE) image IMAGE=bin/image-dropin ENV_FILE=deploy/dropin/agent.env VERSION='$(VERSION)-dropin'

# It needs the database of vulnerabilities, from the network or from a copy that GOVULNDB names (a URL, file:// too).
.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck ## Scan the agent as it ships, and the modules with the newest versions. Needs the network, or GOVULNDB
	@for m in . cmd/agent adapters/controllerruntime adapters/multicluster controlplane; do \
		(cd "$$m" && GOWORK=$$([ "$$m" != cmd/agent ] || echo off) $(TOOLS)/govulncheck $${GOVULNDB:+-db="$$GOVULNDB"} ./...) || \
			{ echo "vulncheck: $$m was not scanned, or has findings: see above. Offline, set GOVULNDB to a copy of the database" >&2; exit 1; }; done

.PHONY: manifests
manifests: ## Copy the manifests of an agent into a folder that stands alone, to be edited and applied: OUT (bin/manifests), SOURCE (admission, informer)
	@mkdir -p '$(OUT)' && rm -rf '$(OUT)/agent'
	@cp -R controlplane/config/agent '$(OUT)/agent' && rm '$(OUT)'/agent/*.go
	@cp deploy/example$(if $(filter informer,$(SOURCE)),-informer)/* '$(OUT)'
	@sed -i.orig 's|\.\./agent/|agent/|; s|\.\./agent$$|agent|' '$(OUT)/kustomization.yaml' && rm '$(OUT)/kustomization.yaml.orig'
	@echo 'edit $(OUT)/kustomization.yaml, as its first comment describes'

# Without ARGS=-dry-run, the tags of all released modules are in this repository afterwards. No remote is contacted. The
# version comes from the command line only, because VERSION has a default.
.PHONY: release
release: $(TOOLS)/apidiff ## Make the commit and the tags of a release, checked in a scratch clone: VERSION=v0.1.0, CONTRIB=v0.1.0 of the group contrib, ARGS=-dry-run
	@$(GO) run ./tools/cmd/release -apidiff=$(TOOLS)/apidiff -version='$(if $(filter command line,$(origin VERSION)),$(VERSION))' -contrib='$(CONTRIB)' $(ARGS)

.PHONY: clean
clean: ## Remove build results except tools and the control plane, which take minutes to build
	@for f in bin/*; do case "$$f" in bin/tools|bin/controlplane|bin/certmanager) ;; *) rm -rf "$$f" ;; esac; done

.PHONY: distclean
distclean: ## Remove all of bin/
	@rm -rf bin

## 
## With GOFIPS140=v1.0.0 in the environment, build and image link Go's FIPS 140-3 module of that version.
## With KUBEBUILDER_ASSETS, tests use the kube-apiserver and etcd of that directory and build none.

# A change of the versions in the module file rebuilds the tool.
$(TOOLS)/%: tools/%.mod tools/%.sum
	@echo 'building $(@F), once: this may take a few minutes' >&2
	@mkdir -p $(@D)
	@cd tools && GOWORK=off $(GO) build -trimpath -buildvcs=false -modfile=$*.mod -o $@ tool
