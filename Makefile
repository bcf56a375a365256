# Everything sets itself up: on a fresh Debian 12 with a Rust toolchain, `make demo` and `make test` are
# all there is to type. Both need root: they make network namespaces.

CARGO ?= cargo

.PHONY: setup build demo test lint unit privileged e2e clean

setup:
	@scripts/setup

build: setup
	$(CARGO) build --release --locked

# A real MPTCP client with two paths, FlexCP, and a plain TCP server; the active path is cut midway.
demo: build
	target/release/lab demo $(DEMO_ARGS)

test: lint unit privileged e2e

lint: setup
	scripts/lint

# No root needed: byte formats, the translator's scenarios, configuration.
unit: setup
	$(CARGO) test --workspace --locked --exclude flexcp-lab --exclude flexcp-io

# The kernel's tables, in namespaces of their own.
privileged: setup
	$(CARGO) test --locked -p flexcp-io

# Real clients and servers around the real binary.
e2e: build
	$(CARGO) test --release --locked -p flexcp-lab

clean:
	$(CARGO) clean
