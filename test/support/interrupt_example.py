#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Presses Ctrl-C in the middle of an example: interrupt_example.py PROGRAM ARGUMENTS... It must end with code 130."""
import os
import signal
import subprocess
import sys

# A process group of its own, all of which gets the signal, as from a terminal.
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True) as program:
    first = program.stdout.readline()
    os.killpg(program.pid, signal.SIGINT)
    while program.stdout.read(1 << 16):
        pass
    code = program.wait()
if not first or code != 130:
    sys.exit(f"exit code {code}, first line: {first}")
