#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python side of .pt files.

torch_files.py version         prints the version; fails where torch is not installed
torch_files.py write FOLDER    writes files as users of torch do
torch_files.py check FILE      reads a file that troupe exported, and tensors.pt beside it, with weights_only=True, and checks
                               every value
"""
import collections
import os
import pathlib
import sys

import torch

DTYPES = [name for name in ("uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 bool bfloat16 "
                            "uint16 uint32 uint64 float8_e4m3fn float8_e5m2").split() if hasattr(torch, name)]


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil_was_here",)


def numbers(dtype, count=6):
    return torch.arange(count).to(torch.float32).to(dtype)


def model():
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) + 100 * index)
    return net


def write(folder):
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.25)
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    net = model()
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    values = {
        "epoch": 3, "big": 2**40, "negative": -5, "lr": 0.1, "inf": float("inf"), "name": "ü", "none": None, "yes": True,
        "no": False, "list": [1, 2.5, "x", [None]], "tuple": (1, 2), "size": torch.Size([2, 3]), "dtype": torch.float16,
        "nested": collections.OrderedDict(a={"b": torch.tensor(7)}), "optimizer": optimizer.state_dict(), "empty": {},
        "tensors": [torch.ones(2), (torch.zeros(1),)],
    }
    views = {"base": base, "transposed": base.t(), "row": base[1], "column": base[:, 2], "steps": base[::2, 1::2],
             "expanded": torch.ones(1).expand(2, 3), "again": base, "none_left": base[3:], "scalar": base[2, 3]}
    files = {
        "model": net.state_dict(),
        "values": values,
        "views": views,
        "dtypes": {name: numbers(getattr(torch, name)) for name in DTYPES},
        "parameter": {"weight": net[0].weight},
    }
    for name, content in files.items():
        torch.save(content, folder / f"{name}.pt")
        torch.save(content, folder / f"{name}.protocol4.pt", pickle_protocol=4)
        if name != "dtypes" or len(DTYPES) == 12:  # newer types have no form in the old format
            torch.save(content, folder / f"{name}.old.pt", _use_new_zipfile_serialization=False)
    torch.save({"a": Evil()}, folder / "evil.pt")
    torch.save({"a": Evil()}, folder / "evil.old.pt", _use_new_zipfile_serialization=False)
    torch.save(net, folder / "module.pt")
    torch.save(torch.ones(2), folder / "tensor.pt")
    torch.jit.script(net).save(str(folder / "script.pt"))
    print(" ".join(DTYPES))


def check(file):
    # The weights_only of 1.13 knows no floats, whoever saved them: there the tensors alone are read so.
    old = torch.__version__.startswith("1.13")
    loaded = torch.load(file, weights_only=not old)
    tensors = torch.load(pathlib.Path(file).with_name("tensors.pt"), weights_only=True)
    assert all(torch.equal(tensors[name], loaded["model"][name]) for name in loaded["model"])
    assert list(loaded) == ["epoch", "big", "lr", "name", "none", "yes", "list", "model", "tied", "scalar", "empty",
                            "types"], list(loaded)
    assert loaded["epoch"] == 4 and type(loaded["epoch"]) is int
    assert loaded["big"] == 18_000_000_000_000_000_000
    assert loaded["lr"] == 0.1 and loaded["name"] == "ü" and loaded["none"] is None and loaded["yes"] is True
    assert loaded["list"] == [1, 2.5, "x", [1, 2]], loaded["list"]
    assert loaded["scalar"].shape == () and loaded["scalar"].item() == 7
    assert loaded["empty"].shape == (0, 3) and loaded["empty"].dtype == torch.float64
    assert loaded["tied"].data_ptr() == loaded["model"]["0.weight"].data_ptr()
    for name, tensor in loaded["types"].items():
        if hasattr(torch, name):
            expected = torch.tensor([0, 1]).to(getattr(torch, name))
            assert tensor.dtype == expected.dtype and bool((tensor.float() == expected.float()).all()), name
    net = model()
    wanted = net.state_dict()
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    net.load_state_dict(loaded["model"])
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    print("good")


def main():
    if sys.argv[1] == "version":
        print(torch.__version__)
    elif sys.argv[1] == "write":
        write(pathlib.Path(sys.argv[2]))
    else:
        check(sys.argv[2])


if __name__ == "__main__":
    main()
