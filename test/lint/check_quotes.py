#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that code in the docs is quoted from files that are built: check_quotes.py ROOT

A fenced block behind `<!-- from examples/quickstart.cpp -->` must be contained verbatim in that file.
"""
import os
import pathlib
import re
import sys

MARKER = re.compile(r"<!-- from (\S+) -->\s*\n+```[^\n]*\n(.*?)```", re.S)
LONE_MARKER = re.compile(r"<!-- from \S+ -->")


def check_page(root, page):
    text = page.read_text()
    blocks = MARKER.findall(text)
    where = page.relative_to(root)
    if len(blocks) != len(LONE_MARKER.findall(text)):
        yield f"{where}: a `<!-- from ... -->` marker is not followed by a code block"
    for name, block in blocks:
        source = root / name
        if not source.is_file():
            yield f"{where}: quotes {name}, which does not exist"
        elif block not in source.read_text():
            yield f"{where}: the block quoted from {name} is not in it word by word:\n{block}"


def pages_below(root):
    for folder, folders, files in os.walk(root):  # tests that run beside this one make and remove folders in the build
        folders[:] = [name for name in folders if not name.startswith((".", "build"))]
        for name in files:
            if name.endswith(".md") and not name.startswith((".", "build")):
                yield pathlib.Path(folder) / name


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = list(pages_below(root))
    errors = [error for page in sorted(pages) for error in check_page(root, page)]
    print("\n".join(errors) or f"{len(pages)} pages, all quotes are in order")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
