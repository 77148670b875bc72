#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_fashion_mnist with IDX files: fashion_mnist_files.py PROGRAM

Good files train; each broken set is refused with exit code 1 and a line that names the file and what is wrong with it.
"""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

NAMES = [f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]


def idx(shape, data):
    return struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape) + bytes(data)


def good_files(count=64):
    """Each label is a bright band of its own, so that a few steps suffice."""
    labels = [i % 10 for i in range(count)]
    images = b"".join(bytes(250 if row // 3 == label else 5 for row in range(28) for _ in range(28)) for label in labels)
    one_set = [idx((count, 28, 28), images), idx((count,), labels)]
    return dict(zip(NAMES, one_set + one_set))


def change(name, new):
    files = good_files()
    files[name] = new(files[name]) if callable(new) else new
    return {key: value for key, value in files.items() if value is not None}


BROKEN = [  # (files, part of the message)
    (change("t10k-labels-idx1-ubyte", None), "t10k-labels-idx1-ubyte: cannot be opened"),
    (change("train-images-idx3-ubyte", lambda data: data[:-1]), "train-images-idx3-ubyte: has 50191 bytes"),
    (change("train-images-idx3-ubyte", lambda data: data + b"x"), "but its header says 50192"),
    (change("train-images-idx3-ubyte", lambda data: data[:9]), "ends inside its header"),
    (change("train-labels-idx1-ubyte", b""), "ends inside its header"),
    (change("train-labels-idx1-ubyte", b"\x1f\x8b\x08\x00more"), "gunzip"),
    (change("train-labels-idx1-ubyte", b"<html>not found</html>"), "is not an IDX file of bytes with 1 dimensions"),
    (change("train-images-idx3-ubyte", struct.pack(">4I", 0x803, 2**31, 2**31, 2**31)), "size that cannot be right"),
    (change("train-images-idx3-ubyte", idx((64, 20, 20), bytes(64 * 400))), "28 x 28"),
    (change("train-labels-idx1-ubyte", idx((63,), bytes(63))), "a label an image"),
    (change("t10k-labels-idx1-ubyte", idx((64,), bytes([10] * 64))), "labels 0 to 9"),
]


def run(program, files):
    with tempfile.TemporaryDirectory(prefix="troupe-fashion-") as folder:
        for name, data in files.items():
            (pathlib.Path(folder) / name).write_bytes(data)
        # Local mode: the same code, and no workers to start for each of the sets.
        return subprocess.run([program, "--data", ".", "--num-workers", "0", "--num-epochs", "1"], cwd=folder,
                              capture_output=True, text=True, env={**os.environ, "HOME": folder})


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    failures = []
    result = run(program, good_files())
    if result.returncode != 0 or "made-up" in result.stdout or "epoch 0: loss" not in result.stdout:
        failures.append(f"good files: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    for files, part in BROKEN:
        result = run(program, files)
        if result.returncode != 1 or part not in result.stderr:
            failures.append(f"expected exit code 1 and: {part}\ngot {result.returncode}: {result.stderr}")
    print("\n".join(failures) or f"good files train, {len(BROKEN)} broken sets are refused")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
