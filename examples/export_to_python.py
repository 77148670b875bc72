#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads the model that the example export_to_python wrote: export_to_python.py [FOLDER]"""
import pathlib
import sys

import torch

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
checkpoint = torch.load(folder / "linear.pt", weights_only=True)
model = torch.nn.Linear(2, 1)
model.load_state_dict(checkpoint["model"])
prediction = model(torch.tensor([[1.0, 1.0]])).item()
print(f"epoch {checkpoint['epoch']}, f(1, 1) = {prediction:.3f}")

try:
    from safetensors.torch import load_file
except ImportError:
    print("safetensors is not installed, which is fine")
else:
    assert all(torch.equal(tensor, checkpoint["model"][name])
               for name, tensor in load_file(folder / "linear.safetensors").items())

sys.exit(0 if abs(prediction - 1.5) < 1e-3 else "the model should have learned f(x, y) = 2 x - y + 0.5")
