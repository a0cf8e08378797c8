# make help lists the targets.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMPOSE  ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
NODES    ?= 3
DIST     ?= dist
LDFLAGS  := -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# How long "make long" fuzzes each target.
FUZZTIME ?= 1h

.PHONY: help build run demo test lint fmt bench long jepsen dist cluster cluster-down clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/pawl
	$(GO) build -buildvcs=false -trimpath -ldflags "$(LDFLAGS)" -o bin/pawl ./cmd/pawl

run: build ## start a cluster of three nodes in one process (NODES=1|3|5)
	@exec ./bin/pawl dev --nodes $(NODES)

demo: build ## see what a fencing token is for (needs PostgreSQL's programs)
	@$(GO) run ./examples/pausedwriter

test: ## run all tests; those that need Docker say so and are skipped without it (PAWL_CI=1: fail)
	$(GO) test -timeout 10m ./...

lint: ## check format, vet and staticcheck
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not formatted (make fmt): $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fmt: ## format the code
	gofmt -w .

bench: ## measure: nothing is judged, figures are printed
	$(GO) test -run '^$$' -bench . -benchmem ./...

long: ## what takes long: fuzzing for an hour and more (FUZZTIME=…), the tests 20 times with the race detector
	GO="$(GO)" FUZZTIME=$(FUZZTIME) .ci/long

jepsen: ## look for what goes wrong under faults: hours, as root (COUNT=… SEED=… DIR=…)
	GO="$(GO)" .ci/jepsen

dist: ## make dist/: the static binary and a Dockerfile that needs no network
	rm -rf $(DIST) && mkdir -p $(DIST)/data && touch $(DIST)/data/.keep
	CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags "-s -w $(LDFLAGS)" -o $(DIST)/pawl ./cmd/pawl
	cp deploy/Dockerfile.dist $(DIST)/Dockerfile

cluster: ## start three containers (PAWL_BUILD=./dist after make dist: without network)
	$(COMPOSE) up -d --build
	@echo 'Ready in a moment: bin/pawl health --ready, or curl -s localhost:'$${PAWL_PORT1:-7700}'/readyz'

cluster-down: ## stop them and remove them with their data
	$(COMPOSE) down --volumes

clean: ## remove what was built
	rm -rf bin $(DIST)
