#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example the way its own head says: run_example.py SOURCE PROGRAM [--wrong-flag]

    // Test arguments: --num-workers 2      optional: arguments for the test
    // Last line: [[0,1,2],[0,1,2]]         the last line it must print, word by word or as a regular expression

--wrong-flag: it must refuse an unknown flag with exit code 2 and a line on stderr that names the flag.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def head_value(source, key):
    match = re.search(rf"^// {key}: (.*)$", source.read_text(), re.M)
    return match.group(1).strip() if match else None


def run(program, arguments):
    with tempfile.TemporaryDirectory(prefix="troupe-example-") as folder:
        # Results go to ~/troupe_results by default: not to the home of who runs the tests.
        return subprocess.run([program, *arguments], capture_output=True, text=True, cwd=folder,
                              env={**os.environ, "HOME": folder})


def matches(expected, line):
    if expected == line:
        return True
    try:
        return re.fullmatch(expected, line) is not None
    except re.error:
        return False


def main():
    source, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    if "--wrong-flag" in sys.argv:
        result = run(program, ["--no-such-flag"])
        good = result.returncode == 2 and "no-such-flag" in result.stderr
        expected = "exit code 2 and the flag's name on stderr"
    else:
        expected = head_value(source, "Last line")
        if expected is None:
            sys.exit(f"{source}: the head must say what the last line is (// Last line: ...)")
        result = run(program, shlex.split(head_value(source, "Test arguments") or ""))
        last = (result.stdout.splitlines() or [""])[-1]
        good = result.returncode == 0 and matches(expected, last)
    print(result.stdout, end="")
    print(result.stderr, end="", file=sys.stderr)
    if not good:
        sys.exit(f"{source.name}: exit code {result.returncode}; expected: {expected}")


if __name__ == "__main__":
    main()
