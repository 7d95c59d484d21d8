# haul: everything that is done to it, by name. `make help` lists the targets.
#
# Plain cargo works as well; the targets add what the machine must have, and what the tests report.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PATH := $(HOME)/.cargo/bin:$(PATH)
export PATH

SKIPS := $(CURDIR)/target/skips.txt

.PHONY: help build demo test test-pfs interop lint bench lab sim sim-targets skew fuzz miri mutants clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

build: ## build the program, optimised: target/release/haul
	@scripts/needs.sh build
	cargo build --release --locked

demo: ## move a real tree between two hosts made of namespaces, kill it half-way, resume, verify (root)
	@scripts/needs.sh demo
	@scripts/demo.sh

# Tests mostly wait, for a disk, for ssh or for somebody's patience to end: two processors run six at a time.
export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 6 ? n : 6)))

# Every test runs, also after one has failed; what was skipped is counted at the end.
test: ## run all tests
	@scripts/needs.sh test
	@scripts/peers.sh
	@mkdir -p target && rm -f $(SKIPS)
	@code=0; \
	HAUL_TEST_SKIPS=$(SKIPS) cargo test --workspace --locked --no-fail-fast || code=$$?; \
	if [ -s $(SKIPS) ]; then \
		echo "skipped:"; sed -E 's/^SKIP .*: needs //' $(SKIPS) | sort | uniq -c | sed 's/\([0-9]\) /\1 need /'; \
	else \
		echo "skipped: 0"; \
	fi; \
	exit $$code

# Also part of `test`, where the packages are there. CephFS takes a minute and 57 MB of them.
test-pfs: ## run the tests on real parallel file systems: GlusterFS, MooseFS and CephFS (root)
	@scripts/needs.sh test
	@scripts/needs.sh pfs-ceph
	cargo build --locked -p haul-cli
	HAUL_TEST_REQUIRE=all cargo test --locked -p haul-lab --test pfs

# Also part of `test`, with a small tree. One at a time: the large ones take some 20 GB of disk.
interop: ## copy large trees between haul and every FTP and GridFTP server and client that is here (root)
	@scripts/needs.sh test
	@scripts/peers.sh
	HAUL_TEST_INTEROP=1 RUST_TEST_THREADS=1 cargo test --locked -p haul-cli --test e2e -- interop --nocapture

lint: ## formatting, clippy with warnings as errors, licences and sources of dependencies
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@scripts/deny.sh

# What is measured goes into a directory of its own: a tour gives no results.
lab: ## a tour of the lab: networks, modelled disks, peers (root; takes less than ten minutes)
	@scripts/needs.sh lab
	cargo build --release --locked -p haul-cli
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; code=0; lab/lab list; \
	for name in overhead disk-order wan-threads peers-large; do \
		lab/lab run $$name --quick --wait 1m --out "$$out" || code=1; \
	done; \
	exit $$code

EXPERIMENTS := overhead protect emulator disk-order wan-threads peers-large peers-10k peers-100k gridftp gridftp-far gridftp-put gridftp-put-far gridftp-server gridftp-server-far gridftp-private gridftp-private-far gridftp-striped
VOLUMES := volume-sizes volume-clients volume-random volume-atlas volume-postmark volume-dpss volume-dpss-far volume-catalog volume-start volume-memory
bench: ## measure against the machine's roofline, fio, rsync and others (root; takes a day)
	@scripts/needs.sh bench
	@scripts/bench-roofline.sh
	@scripts/bench-tree.sh
	@scripts/bench-small.sh
	@scripts/bench-rss.sh
	@scripts/bench-sessions.sh
	@scripts/bench-engine.sh
	@scripts/bench-disk.sh
	@scripts/bench-null.sh
	@scripts/bench-zerocopy.py
	@scripts/bench-protect.sh
	@scripts/bench-order.sh
	@scripts/bench-cache.sh
	@scripts/bench-frag.sh
	@code=0; for name in $(EXPERIMENTS) $(VOLUMES); do lab/lab run $$name --wait 5m || code=1; done; exit $$code

# Each test twice, in a build of its own: with its protection it passes, without it fails.
mutants: ## show that the test of each protection fails without it (ONLY=NAME for one; root)
	@scripts/needs.sh test
	@scripts/mutants.sh $(ONLY)

# Without end in sight of a failure it takes as long as it is told: SEEDS=1000000 is about four minutes a core.
SEEDS ?= 1000000
FIRST ?= 1000000
# Worlds of several hosts take longer, jobs and volumes: a hundredth of the seeds, at least so many.
JOB_SEEDS ?= $(shell expr $(SEEDS) / 100 + 1000)
sim: ## run the simulators for SEEDS seeds from FIRST on, of each kind of world (JOB_SEEDS of several hosts)
	HAUL_SIM_FIRST=$(FIRST) HAUL_SIM_SEEDS=$(SEEDS) cargo test --release --locked -p haul-core --test sim -- --nocapture
	HAUL_SIM_FIRST=$(FIRST) HAUL_SIM_SEEDS=$(JOB_SEEDS) cargo test --release --locked -p haul-core --test job_sim -- --nocapture
	HAUL_SIM_FIRST=$(FIRST) HAUL_SIM_SEEDS=$(JOB_SEEDS) cargo test --release --locked -p haul-core --test volume_sim -- --nocapture

sim-targets: ## simulate 1,008 storage targets at both ends under every scheduling policy, and measure what a decision costs
	cargo run --release --locked -p haul-core --example scale

skew: ## copy between this build and an older one (REV), both ways: it works, or is refused in words (root)
	@scripts/needs.sh test
	@scripts/skew.sh

# Without cargo-fuzz too, see the script. `FUZZ_SECONDS=5 make fuzz` takes a minute and what the build takes.
fuzz: ## fuzz every decoder of bytes from a peer or a disk for FUZZ_SECONDS (30) each
	@scripts/needs.sh fuzz
	@scripts/fuzz.sh

miri: ## run what has unsafe code under Miri (needs a nightly toolchain with it)
	@scripts/miri.sh

clean: ## remove what was built
	cargo clean
