#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example the way its own head says: run_example.py SOURCE PROGRAM [--flags]

    // Test arguments: --num-workers 2      optional: arguments for the test
    // Output: kept: loss 1                 optional, several: lines it must print before, in this order
    // Last line: [[0,1,2],[0,1,2]]         the last line it must print
    // Python script: name.py               optional: beside the example, must then run well in the same folder (with torch)

Lines are compared word by word, or as regular expressions; blanks at their ends do not count.

--flags: --help must explain every flag of the command line in the head and of the test arguments; an unknown flag must be refused with exit code 2 and a
line on stderr that names it.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def head_values(source, key):
    return [value.strip() for value in re.findall(rf"^// {key}: (.*)$", source.read_text(), re.M)]


def head_value(source, key):
    return next(iter(head_values(source, key)), None)


def command_line_flags(source):
    """Those that the head names: `//   build/bin/name [--num-workers 2]`."""
    return [flag for line in re.findall(r"^//   (build/bin/.*)$", source.read_text(), re.M)
            for flag in re.findall(r"(?<!\S)\[?(--[a-z-]+)", line)]


TORCH_PYTHON = os.environ.get("TROUPE_TORCH_PYTHON", "/usr/bin/python3")


def run_script(script, folder):
    """Why it cannot run here; None if it ran well."""
    if subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        return f"{TORCH_PYTHON} has no torch (apt-get install python3-torch)"
    if subprocess.run([TORCH_PYTHON, script], cwd=folder).returncode != 0:
        sys.exit(f"{script.name} failed")
    return None


def run(program, arguments, script=None):
    with tempfile.TemporaryDirectory(prefix="troupe-example-") as folder:
        # Results go to ~/troupe_results by default: not to the home of who runs the tests.
        result = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=folder,
                                env={**os.environ, "HOME": folder})
        skipped = None
        if script is not None and result.returncode == 0:
            skipped = run_script(script, folder)
        return result, skipped


def matches(expected, line):
    if expected == line:
        return True
    try:
        return re.fullmatch(expected, line) is not None
    except re.error:
        return False


def first_missing(expected, lines):
    """The first of the expected lines that does not follow those before it; None if all are there."""
    left = iter(lines)
    return next((one for one in expected if not any(matches(one, line) for line in left)), None)


def main():
    source, program = pathlib.Path(sys.argv[1]).resolve(), os.path.abspath(sys.argv[2])
    arguments = shlex.split(head_value(source, "Test arguments") or "")
    skipped = None
    if "--flags" in sys.argv:
        result, _ = run(program, ["--help"])
        unknown = [flag for flag in ["--help", *arguments, *command_line_flags(source)]
                   if flag.startswith("--") and flag not in result.stdout]
        good, expected = result.returncode == 0 and not unknown, f"exit code 0 and a line on {' '.join(unknown)}"
        if good:
            result, _ = run(program, ["--no-such-flag"])
            good = result.returncode == 2 and "no-such-flag" in result.stderr
            expected = "exit code 2 and the flag's name on stderr"
    else:
        expected = head_value(source, "Last line")
        if expected is None:
            sys.exit(f"{source}: the head must say what the last line is (// Last line: ...)")
        script = head_value(source, "Python script")
        result, skipped = run(program, arguments, source.parent / script if script else None)
        lines = [line.strip() for line in result.stdout.splitlines()] or [""]
        good = result.returncode == 0 and matches(expected, lines[-1])
        if good and (missing := first_missing(head_values(source, "Output"), lines[:-1])) is not None:
            good, expected = False, f"a line {missing}, in the order of the head"
    print(result.stdout, end="")
    print(result.stderr, end="", file=sys.stderr)
    if not good:
        sys.exit(f"{source.name}: exit code {result.returncode}; expected: {expected}")
    if skipped:  # ctest looks for this line: not before all that could be checked was good
        print(f"run_example.py SKIPPED: {skipped}")


if __name__ == "__main__":
    main()
