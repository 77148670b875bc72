#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python side of safetensors.

safetensors_files.py write FILE    writes tensors of every type that numpy knows
safetensors_files.py check FILE    reads a file that troupe exported and checks every value
"""
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

DTYPES = "bool uint8 int8 int16 uint16 float16 int32 uint32 float32 int64 uint64 float64 complex64".split()


def tensors():
    content = {name: numpy.arange(6).reshape(2, 3).astype(name) for name in DTYPES}
    content["scalar"] = numpy.array(7, dtype="int64")
    content["empty"] = numpy.zeros((0, 3), dtype="float32")
    return content


def check(file):
    loaded = load_file(file)
    expected = {f"model.{name}": tensor for name, tensor in tensors().items()}
    assert set(loaded) == set(expected), set(loaded) ^ set(expected)
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
        assert (loaded[name] == tensor).all(), name
    with safe_open(file, framework="numpy") as opened:
        assert opened.metadata()["format"] == "pt"
    print("good")


if sys.argv[1] == "write":
    save_file(tensors(), sys.argv[2], metadata={"who": "python"})
else:
    check(sys.argv[2])
