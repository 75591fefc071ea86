# The first Python on the PATH that is new enough; name another with `make PYTHON=… setup`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin

.PHONY: up test test-fast check format setup lock clean

up: setup
	@exec $(BIN)/tidewatch up

# Two at a time: most tests wait for a process more than they compute.
test: setup
	@exec $(BIN)/pytest -n 2 --dist worksteal

test-fast: setup
	@exec $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer found on PATH: install one (Debian: apt install python3.11 python3.11-venv)." >&2; \
		exit 1; fi
	@$(PYTHON) setup/prepare.py

# Pins anew after a change of pyproject.toml or setup/ivy.xml; the only target that needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--no-header --no-strip-extras --group dev pyproject.toml -o requirements.txt
	echo setuptools | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-annotate --no-header - -c requirements.txt -o setup/requirements-build.txt
	$(PYTHON) setup/prepare.py --relock-jars

clean:
	rm -rf .venv jars setup/.lock
