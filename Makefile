# Quire's short commands over CMake presets. `make help` lists them.
#
# SPDX-License-Identifier: MIT
.DEFAULT_GOAL := build

# The model and prompt of `make run`, `make bench`: MODEL empty means the default model.
MODEL ?=
PROMPT ?= The most useful inventions in the history of mankind are
N ?= 64
PREFIX ?= /usr/local
export MODEL PROMPT PREFIX

.PHONY: build run test bench bench-7b bench-kernels bench-chat bench-agents tool-calls compare compare-serve bench-qos bench-tiers compare-tiers compare-schemes bench-schemes chaos soak quality retention docs test-all coverage asan tsan tiny arm64 fuzz install clean help

build: ## build the release program, build/quire (installs and fetches what is missing)
	@scripts/build.sh release

run: build ## generate text: MODEL=file.gguf PROMPT="..." N=tokens
	@model=$$(scripts/fetch-model.sh) && build/quire run -m "$$model" -p "$$PROMPT" -n $(N)

test: ## all tests: debug build, without the model runtime, with tiny constants
	@scripts/test.sh

test-all: ## the tests of `make test`, tests again under sanitizers, then a search with each fuzz target: CONTRIBUTING.md
	@scripts/test.sh all

coverage: ## the lines of src/ that the tests run, as HTML (needs lcov): COVERAGE_MIN=85
	@scripts/coverage.sh

bench: build ## prefill and decode speed: MODEL=file.gguf ARGS="-d 0,8192 --kv f16,q8"
	@model=$$(scripts/fetch-model.sh) && build/quire bench -m "$$model" $(ARGS)

bench-7b: build ## a 7B shape at 32,768 tokens of KV: memory and speed (makes models of 7 and 13.5 GB): ARGS="--rows q8_0/q8"
	@node scripts/bench-7b.mjs --quire build/quire --generator build/make_gguf $(ARGS)

bench-kernels: build ## attention kernels beside row-major f16 and the memory's rate: ARGS="--isa avx512,avx2"
	@build/bench_attn $(ARGS) && build/bench_attn --threads 2 --kv-heads 2 $(ARGS)

compare: build ## perplexity, speed and memory beside llama.cpp, in one run: ARGS="--only speed"
	@peer=$$(scripts/setup.sh peers) && scripts/fetch-model.sh >/dev/null && \
	node scripts/compare.mjs --quire build/quire --peer "$$peer" $(ARGS)

compare-serve: build ## quire serve and llama-server under the same load: ARGS="--only document --repeats 1"
	@peer=$$(scripts/setup.sh peers) && node scripts/compare-serve.mjs --quire build/quire --peer "$$peer" $(ARGS)

tool-calls: build ## whether arguments of required calls are valid, with 20 schemas of agents: ARGS="--seeds 1 --only grep,glob"
	@model=$$(scripts/fetch-model.sh) && ajv=$$(scripts/setup.sh clients | grep ajv) && prefix=$$(scripts/setup.sh prefix) && \
	node scripts/tool-calls.mjs --quire build/quire --ajv "$$ajv" --model "$$model" \
	    $(if $(MODEL),,--template "$$prefix/quire-common/templates/Qwen-Qwen2.5-7B-Instruct.jinja") $(ARGS)

bench-agents: build ## ratio of computed to new prompt tokens, for transcripts of agents with 43 turns: MODEL=file.gguf ARGS="--agents 4 --sizes 2"
	@model=$$(scripts/fetch-model.sh) && prefix=$$(scripts/setup.sh prefix) && \
	node scripts/agents/replay.mjs --quire build/quire --model "$$model" \
	    $(if $(MODEL),,--template "$$prefix/quire-common/templates/Qwen-Qwen2.5-7B-Instruct.jinja") $(ARGS)

bench-chat: build ## time of template and parsing in a request with 50,000 tokens of history: ARGS="-t 43 -r 21"
	@prefix=$$(scripts/setup.sh prefix) && source=$${prefix%-*}-src && t=$$prefix/quire-common/templates && \
	build/bench_chat -m "$$source/models/ggml-vocab-qwen2.gguf" $(ARGS) $$t/Qwen-Qwen3-0.6B.jinja \
	    $$t/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja $$t/Qwen3-Coder.jinja

bench-qos: build ## a realtime class beside batch work of 4x the capacity, alone, without classes, on llama-server: ARGS="--requests 30"
	@peer=$$(scripts/setup.sh peers) && node scripts/bench-qos.mjs --quire build/quire --peer "$$peer" $(ARGS)

bench-tiers: build ## stores below memory: first token after a restart, rates, cost to others, faults: ARGS="--only restart --rounds 3"
	@node scripts/bench-tiers.mjs --quire build/quire $(ARGS)

compare-tiers: build ## conversations that come back after a restart, beside llama-server's --cache-ram and slot files: ARGS="--rounds 1"
	@peer=$$(scripts/setup.sh peers) && node scripts/compare-tiers.mjs --quire build/quire --peer "$$peer" $(ARGS)

compare-schemes: build ## train models with layers that share K and V, side by side; takes hours, resumable: ARGS="--data texts/ --seeds 3"
	@node scripts/compare-schemes.mjs --quire build/quire $(ARGS)

bench-schemes: build ## speed of models with shared K and V, in shapes of real models (makes models of up to 2 GB): ARGS="--rounds 3 --out FILE"
	@node scripts/compare-schemes.mjs --only speed --quire build/quire $(ARGS)

chaos: ## faults of a cache directory, the long form: crashes at every call, 1,000 kill -9 for each way of reading
	@scripts/chaos.sh

soak: build ## 20,000 mixed requests with random cancels from 100 clients, KV in f32 and q8: ARGS="--requests 2000 --seed 1"
	@node scripts/serve/soak.mjs --quire build/quire --kv f32 $(ARGS)
	@node scripts/serve/soak.mjs --quire build/quire --kv q8 $(ARGS)

retention: build ## quality against KV bytes of the retention policies, resumable: ARGS="--only plan"
	@scripts/fetch-model.sh >/dev/null || true; node scripts/retention.mjs --quire build/quire $(ARGS)
quality: build ## loss by KV size on real models: ARGS="--write", ARGS="--check" (the release gate)
	@scripts/fetch-model.sh >/dev/null && node scripts/quality.mjs --quire build/quire $(ARGS)

docs: ## write docs/configuration.md, docs/metrics.md, docs/architectures.md and a list in docs/server.md from their tables
	@scripts/build.sh debug && QUIRE_WRITE_DOCS=1 build-debug/tests/test_cli_serve_settings && \
	    QUIRE_WRITE_DOCS=1 build-debug/tests/test_server_unsupported && \
	    QUIRE_WRITE_DOCS=1 QUIRE_TEST_ARCH=none build-debug/tests/test_archs_libllama

asan: ## all tests under address and undefined-behaviour sanitizers
	@scripts/test.sh asan

tsan: ## all tests under the thread sanitizer
	@scripts/test.sh tsan

tiny: ## libquire's tests with tiny constants only
	@scripts/test.sh tiny

arm64: ## libquire's tests for AArch64, cross-compiled and run by qemu-user
	@scripts/test.sh arm64

fuzz: ## search for breaking inputs, FUZZ_SECONDS=60 per target (needs clang)
	@scripts/fuzz.sh

install: ## install under PREFIX=/usr/local (and DESTDIR)
	@test -x build/quire || scripts/build.sh release
	@cmake --install build --prefix "$$PREFIX"

clean: ## remove what was built here (fetched and built llama.cpp and models stay in ~/.cache/quire)
	rm -rf build build-arm64 build-asan build-coverage build-debug build-fuzz build-lib build-tiny build-tsan

help: ## this list
	@awk -F ': .*## ' '/^[a-z0-9-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }' Makefile
