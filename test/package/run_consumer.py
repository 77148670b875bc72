#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs a program that embeds troupe.

run_consumer.py find_package|add_subdirectory --source ROOT --build BUILD [--torch] [cmake arguments...]
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command):
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True)


def install(build, folder):
    """An install tree that is moved afterwards: nothing in it may depend on where it was made."""
    made = folder / "made"
    run("cmake", "--install", build, "--prefix", made)
    moved = folder / "moved"
    made.rename(moved)
    return moved


def consumer_object(build):
    """The consumer's own object file, as ninja names it."""
    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True)
    return next(line.split(":")[0] for line in targets.stdout.splitlines() if re.match(r"\S*consumer\.dir\S*main\.cpp\.o:", line))


def check_other_caf(configure, folder):
    """CAF of another major version, which the consumer leads to, is refused with a text that names both."""
    package = folder / "other/lib/cmake/CAF"
    package.mkdir(parents=True)
    (package / "CAFConfig.cmake").write_text("add_library(CAF::core INTERFACE IMPORTED)\n"
                                             "add_library(CAF::io INTERFACE IMPORTED)\n"
                                             "set(CAF_core_FOUND TRUE)\nset(CAF_io_FOUND TRUE)\n")
    (package / "CAFConfigVersion.cmake").write_text('set(PACKAGE_VERSION "99.1.2")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n')
    command = [*configure, "-B", folder / "refused", f"-DCAF_ROOT={folder / 'other'}"]
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = " ".join(result.stdout.split())
    if result.returncode == 0 or not re.search(r"built with CAF \d[\d.]+, but CAF 99\.1\.2 was found; set CAF_ROOT", said):
        sys.exit(f"another CAF: status {result.returncode}, said {result.stdout}")


def check_output(program, logdir):
    result = subprocess.run([program, logdir], stdout=subprocess.PIPE, text=True, timeout=60)
    if result.returncode != 0 or result.stdout.splitlines()[-1:] != ["[0,1]"]:
        sys.exit(f"{program.name}: status {result.returncode}, printed {result.stdout!r}; expected [0,1]")
    print(f"{program.name}: {result.stdout.strip()}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["find_package", "add_subdirectory"])
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--torch", action="store_true")
    arguments, cmake_arguments = parser.parse_known_args()
    programs = ["consumer"]
    with tempfile.TemporaryDirectory(prefix="troupe-package-") as name:
        folder = pathlib.Path(name)
        os.environ["CCACHE_NOHASHDIR"] = "1"  # as in the main build: another folder, the same objects
        if arguments.way == "find_package":
            cmake_arguments.append(f"-DCMAKE_PREFIX_PATH={install(arguments.build, folder)}")
            if arguments.torch:
                programs.append("consumer_torch")
                cmake_arguments.append("-DWITH_TORCH=ON")
        configure = ["cmake", "-G", "Ninja", "-S", arguments.source / "test/package" / arguments.way, "--log-level=WARNING",
                     *cmake_arguments]
        if arguments.way == "find_package":
            check_other_caf(configure, folder)
        run(*configure, "-B", folder / "build")
        if arguments.way == "add_subdirectory" and os.environ.get("CI") != "true":
            # The whole library once more would cost minutes after each change: compiled only, linked and run in CI.
            run("ninja", "-C", folder / "build", consumer_object(folder / "build"))
            return
        run("cmake", "--build", folder / "build", "--target", *programs)
        for program in programs:
            check_output(next((folder / "build").rglob(program)), folder / "logs")


if __name__ == "__main__":
    main()
