# SPDX-License-Identifier: Apache-2.0
"""Steps a second of PyTorch's DistributedDataParallel on the models of `troupe_bench ddp`, one thread a worker.

Run by torchrun; rank 0 prints a JSON object: the name of a model -> the rates of its rounds.
"""
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                             nn.Linear(1024, 10)), torch.randn(64, 784)
    if name == "conv":
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(64 * 8 * 8, 10)), torch.randn(16, 3, 32, 32)
    return nn.Sequential(nn.Linear(5000, 5000)), torch.randn(4, 5000)


def measure(name, rounds, steps):
    model, x = make(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=False)
    model = DistributedDataParallel(model)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    rates = []
    for _ in range(rounds):
        dist.barrier()
        begin = time.monotonic()
        for _ in range(steps):
            step()
        slowest = torch.tensor(time.monotonic() - begin)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        rates.append(steps / slowest.item())
    return rates


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rates = {}
    for argument in sys.argv[1:]:  # name:rounds:steps
        name, rounds, steps = argument.split(":")
        rates[name] = measure(name, int(rounds), int(steps))
    if dist.get_rank() == 0:
        print(json.dumps(rates), flush=True)
    dist.destroy_process_group()


main()
