# Every target is one command of .ci/dev, which prints what it runs and how long it took.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
DEV = $(if $(PYTHON),$(PYTHON),$(error Python 3.11 or newer is needed and not on PATH)) .ci/dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rust test-python smoke loom fuzz lint format bench wheel clean

help:         ## this list
	@sed -n 's/^\([a-z-]*\): *## /  make \1\t/p' Makefile | expand -t 22
setup:        ## system packages: installed by apt-get as root on Debian, named otherwise
	@$(DEV) setup
demo:         ## build and install the wheel, then python -m smcfast demo
	@$(DEV) demo
test:         ## everything: Rust, loom, Python on the oldest, newest and (smoke) other interpreters
	@$(DEV) test
test-rust:    ## the Rust tests alone (T=name picks)
	@$(DEV) test-rust $(T)
test-python:  ## the Python tests alone, on the oldest interpreter (T="-k name" picks)
	@$(DEV) test-python $(T)
smoke:        ## the smoke test on every interpreter
	@$(DEV) smoke
loom:         ## the concurrency models
	@$(DEV) loom
fuzz:         ## the fuzz targets, 60 s each (SECONDS_EACH=n)
	@$(DEV) fuzz $(SECONDS_EACH)
lint:         ## format, clippy, ruff, mypy, stubtest, licences, advisories
	@$(DEV) lint
format:       ## let rustfmt and ruff rewrite the files
	@$(DEV) format
bench:        ## the benchmarks
	@$(DEV) bench
wheel:        ## manylinux_2_28 wheels in dist/, checked
	@$(DEV) wheel
clean:        ## remove what the other targets made
	@$(DEV) clean
