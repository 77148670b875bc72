#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over our sources: run_tidy.py --build FOLDER [--jobs N] [files...]

A file that passed is not checked again until it, any header of ours or .clang-tidy changes. Left out are files that
include torch's headers (minutes each) and the tests (doctest's macros are findings themselves).
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDY = "clang-tidy-19"


def our_sources(build):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        if ROOT in file.parents and build not in file.parents and file.relative_to(ROOT).parts[0] != "test":
            if not re.search(r"#include <(torch|ATen|c10)/", file.read_text()):
                yield file


def digest_of(parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def common_digest():
    headers = sorted(path for path in ROOT.glob("*/**/*.hpp") if not path.relative_to(ROOT).parts[0].startswith("build"))
    return digest_of([(ROOT / ".clang-tidy").read_bytes(), *(path.read_bytes() for path in headers)]).encode()


def check(file, build, passed, common):
    stamp = passed / digest_of([common, str(file).encode(), file.read_bytes()])
    if stamp.exists():
        return True, ""
    # The build's flags and precompiled headers are GCC's; clang does not know all of them.
    command = [TIDY, "--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-gch",
               "--extra-arg=-Wno-deprecated-declarations", "-p", str(build), str(file)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        stamp.touch()
        return True, ""
    return False, result.stdout + (result.stderr if not result.stdout.strip() else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    passed = build / ".tidy"
    passed.mkdir(exist_ok=True)
    common = common_digest()
    files = [file.resolve() for file in arguments.files] or sorted(set(our_sources(build)))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        for file, (good, text) in zip(files, pool.map(lambda file: check(file, build, passed, common), files)):
            if not good:
                failed += 1
                print(f"{file.relative_to(ROOT)}:\n{text}", flush=True)
    print(f"clang-tidy: {len(files)} files, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
