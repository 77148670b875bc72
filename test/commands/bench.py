#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark program: bench.py PROGRAM. What it measures is not looked at, but that and how it tells it."""
import json
import os
import subprocess
import sys

# A few steps of each model, and no peer: there may be one on this machine.
ENVIRONMENT = os.environ | {"TROUPE_BENCH_QUICK": "1", "TROUPE_BENCH_PYTHON": "/bin/false"}


def run(*arguments):
    command = [sys.argv[1], *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=ENVIRONMENT)


CASES = {
    "startup": ["startup.cold.w2", "startup.cold.w8", "startup.warm.w8"],
    "report": ["report.call", "report.rate.w2", "report.latency.p50", "report.latency.p99"],
    "calls": ["calls.roundtrip", "calls.rate"],
    "memory": ["memory.pss.w2"],
    "teardown": ["teardown.w8"],
    # Of a program that was built with libtorch. "recovery" trains for too long.
    "allreduce": [f"allreduce.{size}{over}" for size in ("4KB", "1MB", "64MB") for over in ("", ".gloo")],
    "ddp": [f"ddp.{model}{variant}" for model in ("mlp", "conv", "lin25m") for variant in ("", ".independent")]
    + ["ddp.overhead.w1"],
}


def main():
    known = run("--help").stdout
    for case, names in CASES.items():
        if case in ("allreduce", "ddp") and case not in known:
            continue
        result = run(case, "--json")
        assert result.returncode == 0, result.stderr
        figures = [json.loads(line) for line in result.stdout.splitlines()]
        assert [figure["name"] for figure in figures] == names, result.stdout
        for figure in figures:
            assert set(figure) == {"name", "value", "unit", "n"}, figure
            # An overhead is a difference, which noise may turn around.
            assert figure["value"] > 0 or figure["name"] == "ddp.overhead.w1", figure
            assert figure["n"] > 0 and figure["unit"], figure
        assert case != "ddp" or "torchrun is left out: '/bin/false' has no torch" in result.stderr, result.stderr
    for arguments, text in ((["nonsense"], "nonsense"), (["calls", "--jsno"], "--jsno"), (["soak", "--seconds=-1"], "-1")):
        result = run(*arguments)
        assert result.returncode == 2 and text in result.stderr, (arguments, result)


main()
