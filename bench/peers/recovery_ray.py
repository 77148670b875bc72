# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a worker until all workers have made a new step, under Ray Train, in milliseconds.

recovery_ray.py WORKERS [INJECTIONS] prints a JSON list; nothing where Python has no Ray. The same training as
`troupe_bench recovery`: 64 MB of state, short steps, a checkpoint every 5 steps.
"""
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

CALM_STEPS = 8


def train_func(config):
    import ray.train
    import torch
    import torch.distributed as dist

    folder = pathlib.Path(config["folder"])
    rank = ray.train.get_context().get_world_rank()
    state, step = torch.zeros(16 << 20), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as saved:
            loaded = torch.load(pathlib.Path(saved) / "state.pt")
            state, step = loaded["state"], loaded["step"]
    with open(folder / f"rank_{rank}", "a", buffering=1) as log:
        while not (folder / "end").exists():
            gradient = torch.zeros(4096)
            dist.all_reduce(gradient)
            state[:4096] += gradient
            step += 1
            log.write(f"{time.monotonic_ns()} {os.getpid()}\n")
            if step % 5 == 0:
                with tempfile.TemporaryDirectory() as saved:
                    if rank == 0:
                        torch.save({"state": state, "step": step}, pathlib.Path(saved) / "state.pt")
                        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(saved))
                    else:
                        ray.train.report({"step": step})


def steps_of(folder, rank):
    try:
        text = (folder / f"rank_{rank}").read_text()
    except FileNotFoundError:
        return []
    return [tuple(map(int, line.split())) for line in text[: text.rfind("\n") + 1].splitlines()]


def harm(workers, injections, folder, samples):
    since = 0
    for injection in range(injections + 1):
        while True:
            new = [[t for t, _ in steps_of(folder, rank) if t > since] for rank in range(workers)]
            if all(len(times) >= CALM_STEPS for times in new):
                break
            time.sleep(0.01)
        if since:
            samples.append((max(times[0] for times in new) - since) / 1e6)
        if injection < injections:
            victim = steps_of(folder, injection % workers)[-1][1]
            since = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
    (folder / "end").touch()


def main():
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError:
        print(f"Ray Train is left out: {sys.executable} has no ray (set TROUPE_BENCH_PYTHON to one that has)",
              file=sys.stderr)
        return
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to both
    workers, injections = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        samples = []
        thread = threading.Thread(target=harm, args=(workers, injections, pathlib.Path(folder), samples), daemon=True)
        thread.start()
        ray.init(num_cpus=workers + 1, log_to_driver=False)
        TorchTrainer(train_func, train_loop_config={"folder": folder},
                     scaling_config=ScalingConfig(num_workers=workers),
                     run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=-1))).fit()
        print(json.dumps(samples), file=result, flush=True)


main()
