# Two commands for a newcomer: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo sweep test test-long test-fast mutants site check bench learning bits sweeps methods inaturalist
.PHONY: beside many first trackers memory chaos audit clean

demo: $(VENV)/installed  ## a federated run on real images, on Ray
	$(BIN)/fedskew run

sweep: $(VENV)/installed  ## 24 trials of FedProx and their report: a few minutes
	$(BIN)/fedskew sweep drift.fedprox_mu

test: $(VENV)/installed-test  ## the short tier of the tests: deterministic (8 minutes on two cores)
	$(BIN)/python -m pytest -m "not long"
	$(BIN)/python -m pytest --numprocesses=2 examples/fedskew-more/tests -c examples/fedskew-more/pyproject.toml

test-long: $(VENV)/installed-test  ## the long tier: faults, servers, browser, site; the pretended card needs a torch without CUDA (.ci/constraints.txt)
	$(BIN)/python -m pytest -m long --reruns 1

test-fast: $(VENV)/installed-test  ## the loop of work: no Ray, nothing slow (3 minutes on two cores)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -m "not long and not ray and not slow and not faults"

mutants: $(VENV)/installed-test  ## wrong code that named tests must notice
	$(BIN)/python -m tests.mutants

site: $(VENV)/installed-docs  ## the documentation, into site/: tutorials are run, links checked; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

check: $(VENV)/installed-test  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pyright --pythonpath $(BIN)/python

bench: $(VENV)/installed  ## seconds per round beside a plain loop, in one run; FLOWER=python and PFL=python beside peers
	$(BIN)/python -m benchmarks.speed $(if $(FLOWER),--flower-python $(FLOWER)) $(if $(PFL),--pfl-python $(PFL))

beside: $(VENV)/installed  ## seconds per round of an older commit beside this tree's, in turns (15 minutes): OLD=revision
	$(BIN)/python -m benchmarks.old_beside_new $(or $(OLD),$(error OLD=revision is missing: the commit to compare with))

learning: $(VENV)/installed  ## accuracy against the plain loop on the whole of Fashion-MNIST (15 minutes)
	$(BIN)/python -m benchmarks.learning

sweeps: $(VENV)/installed  ## overhead per trial and memory of sweeps of 50 to 500 trivial trials
	$(BIN)/python -m benchmarks.sweeps

methods: $(VENV)/installed  ## what each method's local work costs beside FedAvg's (15 minutes)
	$(BIN)/python -m benchmarks.method_cost

inaturalist: $(VENV)/installed  ## memory and disk of 2,295 clients of a ResNet18 (10 minutes)
	$(BIN)/python -m benchmarks.inaturalist

many: $(VENV)/installed  ## memory of 100,000 clients, 1,000 per round (10 minutes)
	$(BIN)/python -m benchmarks.many_clients

first: $(VENV)/installed  ## seconds from the command to the first round and from the last to its end (6 minutes)
	$(BIN)/python -m benchmarks.first_round

chaos: $(VENV)/installed-test  ## N runs and N/2 sweeps under drawn faults, and file readers under a fuzzer (two hours); goes on where it stopped
	$(BIN)/pip install --quiet --disable-pip-version-check 'atheris>=2.3'
	$(BIN)/python -m tests.faults.chaos --count $(or $(N),100) --seed $(or $(SEED),0) --page docs/reliability.md
	$(BIN)/python -m tests.faults.out_of_memory
	$(BIN)/python -m tests.faults.fuzz --seconds $(or $(SECONDS),300) --seed $(or $(SEED),1) --out docs/fuzz.json

trackers: $(VENV)/installed  ## sweeps beside an MLflow server that is killed, TensorBoard and W&B, each read back (3 minutes)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[mlflow,tensorboard,wandb]'
	$(BIN)/python -m benchmarks.trackers --out "$$(mktemp -d)/trackers"

memory: $(VENV)/installed  ## memory over 2,000 rounds and over 1,000 trials (10 minutes)
	$(BIN)/python -m benchmarks.memory_over_time

audit: $(VENV)/installed  ## known vulnerabilities of what is installed; ARGUMENTS='--vulnerability-service osv'
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --path "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')" $(ARGUMENTS)

bits: $(VENV)/installed  ## equal bits on any number of actors, after kills and resumes; CIFAR10=folder for real CIFAR-10
	$(BIN)/python -m benchmarks.bits $(if $(CIFAR10),--cifar10 $(CIFAR10))

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]' --editable ./examples/fedskew-more
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site build *.egg-info
