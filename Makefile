# Everything sets itself up: on a fresh Debian 12 with a Rust toolchain, `make demo` and `make test` are
# all there is to type. Both need root: they make network namespaces.

CARGO ?= cargo

.PHONY: setup setup-programs setup-api setup-libconvert libconvert build demo test lint unit unit-security simulate root privileged e2e e2e-repeat link-selftest \
	faults attack hostile-memory lossy firewall endings reload steering rule-changes split ttfb uplinks box location api watch compare kernels kernels-short unit-boot fuzz bench bench-quick bench-plain bench-crowd bench-rule bench-explicit bench-box box-memory bench-beside bench-reads bench-unsteered bench-sustained bench-dtree bench-rules figure10 counters seeded-bugs drawn-bugs \
	mutants-sample \
	bpf clean

setup:
	@scripts/setup

build: setup
	$(CARGO) build --release --locked -p flexcp -p flexcp-lab -p flexcp-bench --bins --examples

# A real MPTCP client with two paths, FlexCP, and a plain TCP server; the active path is cut midway.
demo: build
	target/release/lab demo $(DEMO_ARGS)

test: lint unit unit-security privileged e2e kernels-short

# Compiles the kernel's programs anew, too: their objects have to be what the sources give.
lint: setup-programs
	scripts/lint

# No root needed: byte formats, the fault model, placement, the translator's scenarios, fuzz targets over their
# corpus, the offload's rules, configuration.
unit: setup
	$(CARGO) test --locked -p flexcp-wire -p flexcp-testkit -p flexcp-faults -p flexcp-placement -p flexcp-preamble -p flexcp-location
	$(CARGO) test --locked -p flexcp-translator
	$(CARGO) test --locked -p flexcp-fuzz -p flexcp-mutants
	$(CARGO) test --locked -p flexcp-invariants -p flexcp-simulator
	$(CARGO) test --locked -p flexcp-io --test rules
	$(CARGO) test --locked -p flexcp --lib --bins

# How much of the system the service manager's unit leaves open, as systemd rates it.
unit-security: setup
	@scripts/unit-security

# The translator in virtual time for as long as asked: make simulate SIMULATE_ARGS='--seeds 0..1000000'.
SIMULATE_ARGS ?= --seeds 2000..2000 --time 600
simulate: setup
	$(CARGO) build --release --locked -p flexcp-simulator
	target/release/simulator $(SIMULATE_ARGS)

# What compiles the kernel's programs, after a change in bpf/ or with a bug put into it.
setup-programs:
	@scripts/setup programs

# The kernel's programs, after a change in bpf/.
bpf: setup-programs
	scripts/bpf

root:
	@[ "$$(id -u)" -eq 0 ] || { echo "these tests make network namespaces: run them as root" >&2; exit 1; }

# The kernel's tables and the command line, in namespaces of their own.
privileged: root setup
	$(CARGO) test --locked -p flexcp-io
	$(CARGO) test --locked -p flexcp --test cli

# Real clients and servers around the real binary, with the offload; then without it, and with overflow checks and
# assertions in the binary. FLEXCP_OFFLOAD=off in the environment turns the offload off in all that the lab does. Both runs name the
# same packages, so that nothing is compiled with other features in between.
e2e: root build
	$(CARGO) test --release --locked -p flexcp-lab -p flexcp-bench
	$(CARGO) build --profile checked --locked -p flexcp --bins --examples
	FLEXCP_OFFLOAD=off FLEXCP_BIN=$(CURDIR)/target/checked/flexcp \
		$(CARGO) test --release --locked -p flexcp-lab -p flexcp-bench --test e2e

# curl under Tessares' libconvert, over MPTCP and without, by a FlexCP with mode = "convert". The library is built from its
# sources on github.com.
setup-libconvert:
	@scripts/setup libconvert
libconvert: root build setup-libconvert
	FLEXCP_LIBCONVERT=$(CURDIR)/target/libconvert/build \
		$(CARGO) test --release --locked -p flexcp-lab --test e2e clients::curl_under_libconvert

# All end-to-end cases N times, one attempt each: how often each fails. Goes on where it was broken off; results by
# commit in target/e2e-repeat. E2E_CASE names some of the cases.
N ?= 20
e2e-repeat: root build
	target/release/lab repeat --rounds $(N) $(E2E_CASE)

# Small transfers over faulty links: every combination, or FAULTS_ARGS="--minutes 10 --cell loss". FAULTS_ARGS="--side box,converter"
# has the mirror: FlexCP as an aggregation box; "--side kernel" shows what kernels do among themselves.
faults: root build
	target/release/lab faults $(FAULTS_ARGS)

# Floods, blind injection and a hostile client beside honest traffic: all of them, or
# ATTACK_ARGS="syn-flood map-bomb --seconds 10".
attack: root build
	target/release/lab attack $(ATTACK_ARGS)

# 2,000 hostile connections that hold all the mappings they can get: FlexCP's memory against its budget, and honest transfers
# beside them. A table, and lab/results/hostile-memory.json.
hostile-memory: root build
	target/release/lab hostile-memory $(HOSTILE_ARGS)

# 64 connections of two subflows, 10 GB in all, over links that lose 0.1, 1 and 5 % of the segments; or
# LOSSY_ARGS="--loss 1% --bytes 1000000000".
lossy: root build
	target/release/lab lossy $(LOSSY_ARGS)

# FlexCP beside a stateful firewall and masquerade on its host: what they cost, what is invalid, whether NAT is applied. A
# table, and lab/results/firewall.json.
firewall: root build
	target/release/lab firewall $(FIREWALL_ARGS)

# FlexCP stopped, and killed and started again, under 50 transfers: how long both ends wait to hear of it. A table, and
# lab/results/endings.json.
endings: root build
	target/release/lab endings $(ENDINGS_ARGS)

# The configuration reloaded 1,000 times under transfers: services come, change and go, and every tenth file is broken. A
# table, and lab/results/reload.json; RELOAD_ARGS="--reloads 100" for fewer.
reload: root build
	target/release/lab reload $(RELOAD_ARGS)

# Each steering mode, measured by what two emulated links carry: shares, gaps at a cut, what spills, and how often connections
# move. Tables, lab/results/steering.json and steering.md; STEERING_ARGS="--only balance" for some cases, "--list" names them.
steering: root build
	target/release/lab steering $(STEERING_ARGS)

# 64 downloads over two paths while their rules change: 100 times a second, and by whole sets of 1,000 rules, each tenth change a
# wrong one. A table, and lab/results/rule-changes.json; RULE_CHANGES_ARGS="--seconds 2 --rounds 1" for a short one.
rule-changes: root build
	target/release/lab rule-changes $(RULE_CHANGES_ARGS)

# One download over two paths of 50 Mbit/s through the relay of split connections, beside the translation and haproxy by turns,
# and the processor time of each for a gigabyte. A table, lab/results/split.json and .md.
split: root build
	target/release/lab split $(SPLIT_ARGS)

# The first byte of a server that the client names to a proxy, 40 ms away: by Convert, SOCKS5 and haproxy, beside TCP to the server
# itself, by turns. A table, lab/results/ttfb.json and .md.
ttfb: root build
	target/release/lab ttfb $(TTFB_ARGS)

# Downloads through an aggregation box that lose an uplink, silently, with its carrier or with its address, beside MPTCP from kernel to
# kernel, and one under which an address changes a hundred times. Four minutes, lab/results/uplinks.json and .md.
uplinks: root build
	target/release/lab uplinks $(UPLINKS_ARGS)

# T-MPTCP's Figures 5a and 5b: downloads of 0.1 to 100 MB through an aggregation box over two uplinks of 4G, beside MPTCP from kernel to
# kernel, a box of two terminating proxies (redsocks, danted), and TCP over each uplink alone, by turns; one download while uplinks come
# and go; and what a gigabyte costs of processors. Eleven minutes, lab/results/box.json, box.md and two plots; BOX_ARGS="--only 5b
# --sizes 0.1,10 --rounds 1" for a part.
box: root build
	target/release/lab box $(BOX_ARGS)

# T-MPTCP's Table 1: a box that chooses by measurement among five aggregation servers, downloads by each of them, and what it does when
# the best one becomes slow. Ten minutes, lab/results/location.json, location.md and a plot.
location: root build
	target/release/lab location $(LOCATION_ARGS)

# The API under requests that schemathesis makes from its document for SECONDS, and /metrics before promtool: any answer of 5xx
# and any finding fails. lab/results/api.json.
SECONDS ?= 60
setup-api:
	@scripts/setup api
api: root build setup-api
	scripts/api $(SECONDS)

# Rules, routes, links and addresses taken away under 50 live transfers; or WATCH_ARGS='--live 4 "device down"'.
watch: root build
	target/release/lab watch $(WATCH_ARGS)

# FlexCP beside TCP and kernel-to-kernel MPTCP over the same links: a table, and lab/results/compare.json.
compare: root build
	target/release/lab compare $(COMPARE_ARGS)

# Debian's kernels under QEMU, then the running one: the demo, a smoke, the programs' own tests, a slice of the fault
# matrix, and who carries a transfer's data. A table, and lab/results/kernels.json; KERNELS_ARGS="--kernel 6.1" for one,
# --item TEXT for some items.
kernels: root build
	target/release/lab kernels $(KERNELS_ARGS)

# Of that the programs' rules and one transfer, on Debian's kernels.
kernels-short: root build
	target/release/lab kernels --short --results lab/results/short $(KERNELS_ARGS)

# The unit under Debian 12's own systemd, on Debian's kernels under QEMU: started, killed, restarted and stopped around
# transfers. A table, and lab/results/unit-boot.json; UNIT_BOOT_ARGS="--kernel 6.1" for one. Not a part of `make test`, as it
# takes minutes.
unit-boot: root build
	target/release/lab unit-boot $(UNIT_BOOT_ARGS)

# How exact the lab's emulated links are on this machine, and how fast.
link-selftest: root build
	target/release/lab link-selftest
# Each fuzz target for FUZZ_SECONDS; FUZZ_TARGETS names some of them.
FUZZ_SECONDS ?= 60
fuzz: setup
	scripts/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# FlexCP beside nginx, haproxy, kernel MPTCP and TCP, by turns: tables and plots in bench/results.
bench: root build
	target/release/bench $(BENCH_ARGS)

# The first item of it alone, in less than three minutes.
bench-quick: root build
	target/release/bench --quick $(BENCH_ARGS)

# What FlexCP must not cost those beside its fast path, each against its aim: plain clients on the path, 256 busy
# connections among 20,000 idle ones, and clients on links as the kernel makes them, with two congestion controls.
bench-plain: root build
	target/release/bench --strict --only plain/ --subject flexcp --subject tcp --results bench/results/plain $(BENCH_ARGS)
bench-crowd: root build
	target/release/bench --strict --only crowd --results bench/results/crowd $(BENCH_ARGS)
# What a steering rule costs connections, by turns with none.
bench-rule: root build
	target/release/bench --strict --only rule/ --rounds 9 --results bench/results/rule $(BENCH_ARGS)
# Long downloads by clients that name their server, by Convert and by SOCKS5, by turns with reverse mode.
bench-explicit: root build
	target/release/bench explicit $(BENCH_ARGS)
# 64 connections of two subflows through an aggregation box, beside the proxy turned around (reverse mode), by turns: throughput, and CPU
# time of the whole machine. Four minutes.
bench-box: root build
	target/release/bench box $(BENCH_ARGS)
# Resident memory of FlexCP as a box with 10,000 connections of two subflows that are open and idle. A minute.
box-memory: root build
	target/release/bench box-memory $(BENCH_ARGS)
# This tree's FlexCP beside another commit's, such as the one before an issue, by turns: make bench-beside COMMIT=v0.1.
bench-beside: root build
	scripts/bench-beside $(COMMIT) $(TURNS)
# What looking costs them: 64 busy of 50,000 connections, alone, with `show stats` ten times a second, and with a list of
# all connections every ten seconds, by turns. Seven minutes.
bench-reads: root build
	target/release/bench --strict --reads --results bench/results/reads $(BENCH_ARGS)
bench-unsteered: root build
	@missed=0; for congestion in cubic bbr; do \
		target/release/bench --strict --only unsteered/ --subject flexcp --subject mptcp --subject tcp \
			--congestion $$congestion --results bench/results/unsteered-$$congestion $(BENCH_ARGS) || missed=1; \
	done; exit $$missed

# Objects of 64 MB on the same links: how long connections stay with the worker.
bench-sustained: root build
	@missed=0; for congestion in cubic bbr; do \
		target/release/bench --strict --only sustained/ --congestion $$congestion \
			--results bench/results/sustained-$$congestion $(BENCH_ARGS) || missed=1; \
	done; exit $$missed

# The paper's Figure 10: 256 connections that download all the time, over one path, two, two of which one takes 100 ms
# longer, and two again; with the offload, then without. Tables, figure10.json and a plot for each in
# bench/results/figure10; FIGURE10_ARGS="--offload on --rule 'mode = \"smallest-delay\"'" for one of them under another rule.
figure10: root build
	target/release/bench figure10 $(FIGURE10_ARGS)

# What is counted and what it means, from the sources.
counters: build
	target/release/flexcp explain --markdown >docs/counters.md

# The D-tree's ring against a linear list and ordered maps: the table in docs/dtree.md.
bench-dtree: setup
	$(CARGO) bench --locked -p flexcp-translator --features internals --bench dtree

# The index of steering rules against a look at each: a table.
bench-rules: setup
	$(CARGO) bench --locked -p flexcp-translator --features internals --bench rules

# Bugs put into a copy of the source on purpose, and which tests notice: a table, and lab/results/seeded-bugs.json. With
# root all of them; SEEDED_ARGS="--resume" goes on where a run was stopped, "--area io" takes those of one crate.
seeded-bugs: setup-programs
	scripts/seeded-bugs run $(SEEDED_ARGS)

# COUNT further bugs drawn from SEED, and which tests notice.
SEED ?= 1
COUNT ?= 30
drawn-bugs: setup-programs
	scripts/seeded-bugs draw --seed $(SEED) --count $(COUNT)
	scripts/seeded-bugs run --list mutants/drawn/$(SEED).txt $(SEEDED_ARGS)

# Operators changed one by one in a sample of the code: needs cargo-mutants, and says how to install it.
mutants-sample: setup
	scripts/mutants-sample $(SEED) $(COUNT)

clean:
	$(CARGO) clean
