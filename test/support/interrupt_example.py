#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Presses Ctrl-C in the middle of an example: interrupt_example.py PROGRAM ARGUMENTS...

It must end with code 130 and leave no process behind."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main():
    with tempfile.TemporaryDirectory() as home:
        # A process group of its own, all of which gets the signal, as from a terminal.
        program = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "HOME": home}, cwd=home)
        first = program.stdout.readline()
        others = descendants(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        while program.stdout.read(1 << 16):
            pass
        code = program.wait()
    left = [pid for pid in others if lives(pid)]
    if not first or code != 130 or len(others) < 2 or left:
        sys.exit(f"exit code {code}, first line: {first}, processes {others}, of which are left: {left}")


main()
