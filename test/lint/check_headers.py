#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every public header alone (syntax only): check_headers.py ROOT COMPILER [flags...]

Flags are those of a program that links troupe (and troupe::torch). Warnings are errors. Headers named torch* are left
out where the flags show no libtorch.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys


def compile_alone(header, command):
    source = f"#include <troupe/{header.name}>\n#include <troupe/{header.name}>\nint main() {{}}\n"
    result = subprocess.run(command + ["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion",
                                       "-Wno-sign-conversion", "-Werror", "-x", "c++", "-"],
                            input=source, text=True, capture_output=True)
    return header, result.returncode, result.stderr


def main():
    root, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    headers = sorted(header for header in root.glob("*/troupe/*.hpp")) + sorted(root.glob("runtime/*/troupe/*.hpp"))
    if not headers:
        print(f"no public header under {root}")
        return 1
    if subprocess.run(command + ["-fsyntax-only", "-x", "c++", "-"], input="#include <ATen/core/Tensor.h>", text=True,
                      capture_output=True).returncode != 0:
        print("no libtorch: headers named torch* are left out")
        headers = [header for header in headers if not header.name.startswith("torch")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for header, code, errors in pool.map(lambda header: compile_alone(header, command), headers):
            if code != 0:
                failed += 1
                print(f"{header.relative_to(root)} does not compile alone:\n{errors}")
    print(f"{len(headers)} public headers, {failed} do not compile alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
