# Every target is one command of .ci/dev, which prints what it runs and how long it took.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
DEV = $(if $(PYTHON),$(PYTHON),$(error Python 3.11 or newer is needed and not on PATH)) .ci/dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rust test-python test-vm test-apps smoke loom sanitize fuzz soak lint format bench bench-compare bench-rdma bench-apps count count-update wheel clean

help:         ## this list
	@sed -n 's/^\([a-z-]*\): *## /  make \1\t/p' Makefile | expand -t 22
setup:        ## system packages: installed by apt-get as root on Debian, named otherwise
	@$(DEV) setup
demo:         ## build and install the wheel, then python -m smcfast demo
	@$(DEV) demo
test:         ## everything: Rust, loom, sanitizers, Python on the oldest, newest and (smoke) other interpreters, RDMA in a VM
	@$(DEV) test
test-rust:    ## the Rust tests alone (T=name picks)
	@$(DEV) test-rust $(T)
test-python:  ## the Python tests alone, on the oldest interpreter (T="-k name" picks)
	@$(DEV) test-python $(T)
test-vm:      ## the tests with software RoCE and the kernel's SMC, in a VM that is booted for them (T="-k name" picks)
	@$(DEV) test-vm $(T)
test-apps:    ## aiohttp, uvicorn, httpx, websockets, Redis, PostgreSQL and others on smcfast (T="-k name" picks)
	@$(DEV) test-apps $(T)
smoke:        ## the smoke test on every interpreter
	@$(DEV) smoke
loom:         ## the concurrency models
	@$(DEV) loom
sanitize:     ## the core's tests under AddressSanitizer, the ring under ThreadSanitizer
	@$(DEV) sanitize
fuzz:         ## the fuzz targets, 60 s each (SECONDS_EACH=n)
	@$(DEV) fuzz $(SECONDS_EACH)
soak:         ## 10,000 kills, 10,000 cancellations, 1,000,000 simulated connections, 30 min of traffic, SMC-R at length (ROUNDS, CONNECTIONS, MINUTES, SEED, PART)
	@$(DEV) soak $(PART) $(foreach each,ROUNDS CONNECTIONS MINUTES SEED,$(if $($(each)),--$(shell echo $(each) | tr A-Z a-z) $($(each))))
lint:         ## format, clippy, ruff, mypy, stubtest, licences, advisories
	@$(DEV) lint
format:       ## let rustfmt and ruff rewrite the files
	@$(DEV) format
bench:        ## the benchmarks, three runs, and the table against the gates, 10 minutes (KEEP=1: the README shows it)
	@$(DEV) bench
bench-compare: ## the work tree against another commit (REF=main)
	@$(DEV) bench-compare $(REF)
bench-rdma:   ## kernel SMC, raw verbs, TCP and smcfast over software RoCE, in one boot of a VM (KEEP=1: docs/benchmarks.md shows it)
	@$(DEV) bench-rdma
bench-apps:   ## requests a second of aiohttp, Redis and PostgreSQL by TCP, unix sockets and smcfast (KEEP=1: docs/benchmarks.md shows it)
	@$(DEV) bench-apps
count:        ## instructions of the fast paths, held to benches/results/counts.json
	@$(DEV) count
count-update: ## the same, and keep them
	@$(DEV) count-update
wheel:        ## manylinux_2_28 wheels in dist/, checked
	@$(DEV) wheel
clean:        ## remove what the other targets made
	@$(DEV) clean
