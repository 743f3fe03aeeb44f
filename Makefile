# Everything runs in virtual environments made here; nothing else needs to be installed.
PYTHON ?= python3
TEST := .venv/test
RUN := .venv/run
PEERS := .venv/peers
DOCS := .venv/docs
BUILD := .venv/dist
TREE := .venv/tree
AUDIT := .venv/audit
INSTALL := install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := -m pip $(INSTALL)

N ?= 1000
SEED ?= 0
WAY ?= plain
JOBS ?= $(shell nproc)

.PHONY: demo test test-all test-gpu fuzz lint types benchmark peers pictures gallery notebooks screenshots docs docs-serve matrix bounds audit dist cleanroom mutants clean

demo: $(RUN)/.installed
	$(RUN)/bin/whence explain src/whence/demo/cat.jpg --top 2 --out out/demo --force
	$(RUN)/bin/whence explain --out out/demo --force \
		"The story is thin, but the acting is superb and the ending deeply moving." \
		"An unwatchable mess, not worth a minute of your time." \
		"Two hours of fine actors with nothing to say."
	$(RUN)/bin/whence generate --out out/demo --force --tokens 16 \
		"Once upon a time there was a dog named Max. Max had a red ball. One day, Max lost his"
	@echo
	@echo "Pictures and pages are in $(CURDIR)/out/demo: open cat.png and the .html files."

test: lint types
	$(TEST)/bin/python -m pytest -n auto

test-all: lint types
	$(TEST)/bin/python -m pytest -n auto -m ''

# What has to hold on a GPU. It needs torch for CUDA, transformers and what whence needs, but not pytest:
# make test-gpu GPU_PYTHON=python3 runs it with a Python of yours.
GPU_PYTHON ?= $(TEST)/bin/python
test-gpu:
	PYTHONPATH=src $(GPU_PYTHON) -m tests.gpu

# Random Transformers beside an oracle: make fuzz N=1000 SEED=0; WAY=compiled, chunks, blocks or
# segments on another path through the engine.
fuzz: $(RUN)/.installed
	$(RUN)/bin/python -m tests.fuzz.run --count $(N) --seed $(SEED) --jobs $(JOBS) --path $(WAY)

lint: $(TEST)/.installed
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/lint-imports --no-logo
	$(TEST)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*
	$(TEST)/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(TEST)/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	$(TEST)/bin/zizmor --offline --quiet --strict-collection --persona auditor .github

types: $(TEST)/.installed
	$(TEST)/bin/mypy

# The core tests with later releases of torch and transformers, minutes each.
matrix:
	$(PYTHON) scripts/matrix.py

# The tests with the lowest release of every dependency and every extra, as pyproject.toml allows.
bounds: $(BUILD)/.installed
	$(BUILD)/bin/python scripts/bounds.py

# Advisories and licences of everything that is installed, in out/audit. Error 3: not all was checked.
# ADVISORIES=folder-or-zip looks advisories up in a database of OSV records on disk.
audit: $(AUDIT)/.installed $(TEST)/.installed
	$(AUDIT)/bin/python scripts/audit.py --python $(TEST)/bin/python \
		$(if $(ADVISORIES),--advisories '$(ADVISORIES)')

# Wheel, sdist, bill of materials and hashes in dist/: built twice, and kept if both are bit-equal.
dist: $(BUILD)/.installed $(TREE)/.installed
	$(BUILD)/bin/python scripts/dist.py --tree $(TREE)/bin/python

# The built wheel in fresh environments, one for each Python at hand, without the checkout: demo and
# core tests. PYTHONS='--only 3.12' takes one.
cleanroom: dist
	$(PYTHON) scripts/cleanroom.py $(PYTHONS)

# Faults put into the code that finds structure: which of them do the tests notice? Takes hours;
# MUTANTS='--limit 200' takes a sample.
mutants: $(TEST)/.installed
	$(TEST)/bin/python scripts/mutate.py --out out/mutants.json $(MUTANTS)

pictures: $(RUN)/.installed
	$(RUN)/bin/python docs/pictures.py

# The pictures of the gallery, by the code on its page.
gallery: $(RUN)/.installed
	$(RUN)/bin/python scripts/gallery.py

notebooks: $(TEST)/.installed
	$(TEST)/bin/python examples/execute.py

screenshots: $(TEST)/.installed
	$(TEST)/bin/python docs/generation_screenshots.py
	$(TEST)/bin/python docs/report_screenshots.py
	$(TEST)/bin/python docs/web_screenshots.py

# The documentation site, in out/site: open index.html. It needs no network, and neither does the build.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "The site is in $(CURDIR)/out/site: open index.html."

docs-serve: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve

# The whole table of speed of this machine, all that fits it; the figures stay in out/speed-RUN.json.
# ONLY="plain compiled" takes some sections, QUICK=1 a tiny model.
benchmark: $(RUN)/.installed
	$(RUN)/bin/python benchmarks/speed.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

# Other libraries beside ours: time and memory on a ViT, then numbers on the text models of lxt.
# AUTHORS=path/to/Transformer-Explainability adds the authors' code.
peers: $(PEERS)/.installed
	$(PEERS)/bin/python -W ignore benchmarks/peers.py --model vit_tiny_patch16_224 \
		$(if $(AUTHORS),--authors '$(AUTHORS)')
	$(PEERS)/bin/python -W ignore benchmarks/compare_attnlrp_lxt.py

# Tests need timm and torchvision; a plain installation does not, and is kept apart from them.
$(TEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python $(PIP) --editable '.[dev]'
	touch $@

$(RUN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RUN)
	$(RUN)/bin/python $(PIP) --editable '.[benchmark,methods,ray]'
	touch $@

# The site reads docstrings without importing them, so it needs the extra `docs` and not torch.
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(PYTHON) scripts/list_extra.py docs > $(DOCS)/requirements.txt
	$(DOCS)/bin/python $(PIP) --requirement $(DOCS)/requirements.txt
	touch $@

$(AUDIT)/.installed: constraints.txt
	$(PYTHON) -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python $(PIP) license-expression packaging pip-audit pyyaml
	touch $@

$(BUILD)/.installed: constraints.txt
	$(PYTHON) -m venv --clear $(BUILD)
	$(BUILD)/bin/python $(PIP) build cyclonedx-bom hatchling twine uv
	touch $@

# The core dependencies and nothing else, not even pip: the bill of materials lists them.
$(TREE)/.installed: pyproject.toml constraints.txt $(BUILD)/.installed
	$(PYTHON) -m venv --clear --without-pip $(TREE)
	$(PYTHON) scripts/list_extra.py > $(TREE)/requirements.txt
	$(BUILD)/bin/python -m pip --python $(TREE) $(INSTALL) --requirement $(TREE)/requirements.txt
	touch $@

# lxt supports text models of transformers 4, and asks for more than it needs.
$(PEERS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		torch==2.13.0 transformers==4.55.4 grad-cam==1.5.7 einops --editable '.[methods,timm]'
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lxt==2.1
	touch $@

clean:
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache
