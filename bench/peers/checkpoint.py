#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What others need for the checkpoints of troupe_bench: one JSON object a line, name, value, unit, n.

checkpoint.py FOLDER MEGABYTES SMALL_TENSORS
"""
import json
import os
import shutil
import statistics
import sys
import time

ROUNDS = 3


def sync(path):
    """Makes a file, or all in a folder, durable."""
    for name in [path] if os.path.isfile(path) else [os.path.join(path, name) for name in os.listdir(path)]:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def measure(name, action, path=None, size=None):
    """Prints the median time of `action`; as GB/s if it has a size. With a path, what is there is made durable too."""
    samples = []
    for _ in range(ROUNDS):
        if path:
            remove(path)
        begin = time.perf_counter()
        action()
        if path:
            sync(path)
        samples.append(time.perf_counter() - begin)
    seconds = statistics.median(samples)
    value, unit = (size / 1e9 / seconds, "GB/s") if size else (seconds * 1e3, "ms")
    print(json.dumps({"name": name, "value": value, "unit": unit, "n": ROUNDS}), flush=True)


def peers():
    """Name -> (save(state, path), load(path, state)) of what is installed."""
    import torch

    found = {"torch": (torch.save, lambda path, state: torch.load(path, weights_only=True))}
    try:
        import torch.distributed.checkpoint as dcp

        found["dcp"] = (
            lambda state, path: dcp.save(state, checkpoint_id=path, no_dist=True),
            lambda path, state: dcp.load(state, checkpoint_id=path, no_dist=True),
        )
    except (ImportError, AttributeError) as error:
        print(f"skipped: DCP ({error})", file=sys.stderr)
    try:
        from safetensors.torch import load_file, save_file

        # Its tensors are mapped; the others' are in memory, so these are brought there too.
        found["safetensors"] = (save_file, lambda path, state: {key: one.clone() for key, one in load_file(path).items()})
    except ImportError as error:
        print(f"skipped: safetensors ({error})", file=sys.stderr)
    return found


def main():
    folder, megabytes, small = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no Python with torch ({error}); set TROUPE_BENCH_PYTHON to one", file=sys.stderr)
        return
    import warnings

    warnings.simplefilter("ignore")
    size = megabytes << 20
    large = {f"layer.{i}.weight": torch.full((size // 64 // 4,), float(i)) for i in range(64)}
    tiny = {f"layer.{i}.weight": torch.full((256,), float(i)) for i in range(small)}
    for name, (save, load) in peers().items():
        path = os.path.join(folder, "peer_" + name)
        measure(f"checkpoint.save.fsync.{name}", lambda: save(large, path), path, size)
        measure(f"checkpoint.load.{name}", lambda: load(path, large), None, size)
        measure(f"checkpoint.small.save.{name}", lambda: save(tiny, path), path)
        measure(f"checkpoint.small.load.{name}", lambda: load(path, tiny))
        remove(path)


if __name__ == "__main__":
    main()
