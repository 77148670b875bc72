#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses ./dev as people do who get it wrong: dev.py DEV. Nothing is installed or built."""
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys
import tempfile

DEV = sys.argv[1]
COMMANDS = ("demo", "test", "build", "bench", "asan", "soak", "fuzz", "lint", "format", "clean", "help")
# arguments, exit code, what it says
CASES = [
    ([], 0, "usage: ./dev COMMAND"),
    (["help"], 0, "usage: ./dev COMMAND"),
    (["test", "--help"], 0, "usage: ./dev COMMAND"),
    (["tset"], 2, 'unknown command "tset"; see ./dev help'),
    (["build", "--torhc=off"], 2, "unknown flag --torhc=off; see ./dev help"),
    (["build", "--torch=cuda"], 2, '--torch is "cuda"; valid: wheel, system, off'),
    (["build", "--jobs=0"], 2, '--jobs is "0"; give a number of 1 or more'),
    (["build", "--jobs=many"], 2, '--jobs is "many"'),
    (["build", "--caf=/no/such/folder"], 2, "--caf: there is no folder /no/such/folder"),
    (["build", "test"], 2, 'one command at a time, not both "build" and "test"'),
    (["test", "--seconds=5"], 2, "--seconds=5 is a flag of soak alone"),
]


def as_ci(value):
    """What ./dev and .ci/run make of a service's CI."""
    environment = {name: text for name, text in os.environ.items() if name != "CI"} | ({} if value is None else {"CI": value})
    by_dev = subprocess.run(["bash", "-c", 'source "$0" help >/dev/null; echo "${CI-unset}"', DEV], capture_output=True,
                            text=True, env=environment).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / ".ci").mkdir()
        shutil.copy(pathlib.Path(DEV).parent / ".ci/run", folder / ".ci/run")
        (folder / "dev").write_text('#!/bin/sh\necho "$CI $1"\n')
        (folder / "dev").chmod(0o755)
        by_ci = subprocess.run([folder / ".ci/run"], capture_output=True, text=True, env=environment).stdout.strip()
    return by_dev, by_ci


def formats_among_blanks():
    """Formats one file in a folder whose path has blanks."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "of mine, with blanks"
        folder.mkdir()
        shutil.copy(DEV, folder / "dev")
        source = folder / "a file.cpp"
        source.write_text("int  main( ){}\n")
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        subprocess.run(["bash", folder / "dev", "format"], check=True, stdout=subprocess.DEVNULL)
        return source.read_text() == "int main() {}\n"


def can_format():
    """Whether ./dev format has all that it would install."""
    missing = subprocess.run(["bash", "-c", 'source "$0" help >/dev/null; missing_packages git "${lint_tools[@]}"', DEV],
                             capture_output=True, text=True, check=True).stdout
    return not missing


def cache_without_home(script):
    """Where a script keeps what it downloads when there is no HOME, as in services."""
    line = next(line for line in pathlib.Path(script).read_text().splitlines() if line.startswith("cache="))
    return subprocess.run(["bash", "-uc", line + '\necho "$cache"'], capture_output=True, text=True, env={}).stdout.strip()


def main():
    wrong = []
    if subprocess.run(["bash", DEV, "help"], capture_output=True, env={}).returncode != 0:
        wrong.append("./dev help fails without HOME")
    for script in (DEV, pathlib.Path(DEV).parent / "cmake/fetch_torch.sh"):
        if cache_without_home(script) != pwd.getpwuid(os.getuid()).pw_dir + "/.cache/troupe":
            wrong.append(f"{script} without HOME: {cache_without_home(script)}")
    for value, expected in ((None, "unset"), ("", "unset"), ("false", "unset"), ("0", "unset"), ("1", "true"), ("true", "true")):
        if as_ci(value) != (expected, "true test"):
            wrong.append(f"CI={value}: {as_ci(value)}")
    if can_format() and not formats_among_blanks():
        wrong.append("./dev format does not format in a folder with blanks")
    for arguments, code, text in CASES:
        result = subprocess.run(["bash", DEV, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        said = result.stdout if code == 0 else result.stderr
        if result.returncode != code or text not in said:
            wrong.append(f"./dev {' '.join(arguments)}: exit {result.returncode}, said: {said}")
    explained = subprocess.run(["bash", DEV, "help"], capture_output=True, text=True).stdout
    wrong += [f"help does not explain {name}" for name in COMMANDS if not re.search(rf"^  {name} +\w", explained, re.M)]
    if wrong:
        sys.exit("\n".join(wrong))


main()
