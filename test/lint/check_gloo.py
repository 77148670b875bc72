#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no code of Gloo's headers was compiled into a library: check_gloo.py LIBRARY

The wheel of libtorch holds a newer Gloo than the headers that Debian has of it: an inline function of theirs, or of
c10d's ProcessGroupGloo, may take an object's fields for where they are not.
"""
import re
import subprocess
import sys

CODE = re.compile(r"^[0-9a-f]* [TtWw] ((?:virtual thunk to )?(?:gloo|c10d::ProcessGroupGloo)::.*)$", re.M)


def main():
    listing = subprocess.run(["nm", "--demangle", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True)
    if "troupe::" not in listing.stdout:
        print(f"nm shows nothing of troupe in {sys.argv[1]}")
        return 1
    found = sorted(set(CODE.findall(listing.stdout)))
    for function in found:
        print(f"{function} is compiled into {sys.argv[1]}: let libtorch call it (backends/torch/torch_compat.hpp)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
