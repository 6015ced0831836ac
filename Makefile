# make help lists what there is.
.DEFAULT_GOAL := help
.PHONY: help build image release demo test test-postgres test-long test-clients test-containers conformance lint fmt fuzz bench vuln clean demo-agents
GO       ?= go
TOOLS    := bin/tools
FUZZTIME ?= 10s
IMAGE    ?= relavium-serve
# What must not reach out runs with nothing but loopback, where the system allows it.
CAGE      = $(shell scripts/loopback --probe 2>/dev/null && echo scripts/loopback)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/relavium-serve, one static file
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/relavium-serve ./cmd/relavium-serve

image: build ## the container image IMAGE (relavium-serve) around that file; pulls nothing
	@scripts/image $(IMAGE)

release: ## bin/release: the file for linux, macOS and Windows on amd64 and arm64, with checksums
	@GO=$(GO) scripts/release bin/release

demo: build ## publish examples/workflows and drive one as an MCP client would
	@$(GO) run ./integration/demo

demo-agents: build ## run a workflow with two agents: by a local stand-in, or with RELAVIUM_ANTHROPIC_API_KEY set by the provider
	@$(GO) run ./integration/demoagents

# What needs a large download has a target of its own, which .ci/run makes too.
AGENTS    = TestClaudeCode(Token)?|TestCodexToken|TestInspector|TestAISDK|TestLangChain

test: clients ## everything but the agents, the containers and the conformance suite
	$(GO) vet ./...
	scripts/postgres $(GO) test -race -timeout 20m -skip '^($(AGENTS)|TestSuite.*|TestContainers.*)$$' $(TESTFLAGS) ./...
	@echo 'left out: $(subst |, ,$(AGENTS)) (make test-clients), TestSuite (make conformance), TestContainers (make test-containers)'

test-postgres: ## the engine's tests with every run in PostgreSQL
	RELAVIUM_TEST_POSTGRES_EVERYWHERE=1 scripts/postgres $(GO) test -race -parallel 8 -timeout 15m $(TESTFLAGS) ./engine/...

test-long: ## the tests that `test` scales down, at full length (22 minutes)
	$(GO) test -count=1 -timeout 40m -run 'HTTP|KeyFlood|ProgressIs' ./publish -long
	$(GO) test -race -count=1 -timeout 10m -run Cycles ./inbound/child -long

test-clients: clients ## the built binary with real MCP clients and agents (first time: 1 GB from npm)
	@scripts/peers conformance agents
	$(CAGE) $(GO) test -race -count=1 -timeout 10m -v -run '^($(AGENTS)|TestTypeScript.*)$$' ./integration

test-containers: build ## replicas and PostgreSQL in containers that are killed and cut off (root, Debian's docker.io, docker-compose, postgresql, haproxy)
	scripts/netns $(GO) test -race -count=1 -timeout 15m -v $(TESTFLAGS) ./integration/containers

conformance: ## the official MCP conformance suite (first time: 240 MB from npm)
	@scripts/peers conformance
	$(CAGE) $(GO) test -count=1 -v ./integration/conformance

lint: $(TOOLS)/golangci-lint ## the linters of .golangci.yml, formatting included
	$(TOOLS)/golangci-lint run --allow-serial-runners ./...

fmt: $(TOOLS)/golangci-lint ## format every file
	$(TOOLS)/golangci-lint fmt ./...

fuzz: ## every fuzz target for FUZZTIME (10s)
	scripts/fuzz $(FUZZTIME)

bench: build ## one run against the goals: a table of times and ratios
	scripts/postgres $(GO) run ./bench

vuln: $(TOOLS)/govulncheck ## known vulnerabilities that the binary can reach
	cd tools && $(GO) run ./vuln -scanner ../$(TOOLS)/govulncheck -allow vuln/allow.txt -dir ..

clean: ## remove what was built
	rm -rf bin integration/*/node_modules

.PHONY: clients
clients:
	@scripts/clients

$(TOOLS)/%: tools/go.sum
	cd tools && $(GO) build -o ../$(TOOLS)/ tool
	@touch $(TOOLS)/*
