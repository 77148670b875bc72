#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses ./dev as people do who get it wrong: dev.py DEV. Nothing is installed or built."""
import re
import subprocess
import sys

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


def main():
    wrong = []
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
