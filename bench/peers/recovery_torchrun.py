# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a worker until all workers have made a new step, under torchrun --max-restarts, in milliseconds.

recovery_torchrun.py WORKERS [INJECTIONS] prints a JSON list; nothing where Python has no torch. The same training as
`troupe_bench recovery`: 64 MB of state, short steps, a checkpoint every 5 steps.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

CALM_STEPS = 8
PATIENCE_S = 120


def worker(folder):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saved = folder / "state.pt"
    state, step = torch.zeros(16 << 20), 0
    if saved.exists():
        loaded = torch.load(saved)
        state.copy_(loaded["state"])
        step = loaded["step"]
    with open(folder / f"rank_{rank}", "a", buffering=1) as log:
        while True:
            gradient = torch.zeros(4096)
            dist.all_reduce(gradient)
            state[:4096] += gradient
            step += 1
            log.write(f"{time.monotonic_ns()} {os.getpid()}\n")
            if step % 5 == 0 and rank == 0:
                torch.save({"state": state, "step": step}, folder / "new.pt")
                os.replace(folder / "new.pt", saved)


def steps_of(folder, rank):
    """(time, pid) of the complete lines."""
    try:
        text = (folder / f"rank_{rank}").read_text()
    except FileNotFoundError:
        return []
    return [tuple(map(int, line.split())) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_for(launcher, condition):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > end or launcher.poll() is not None:
            raise TimeoutError("torchrun did not come back")
        time.sleep(0.005)
    return value


def measure(workers, injections, folder):
    launcher = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={workers}",
         "--max_restarts=1000", "--monitor_interval=0.1", __file__, "--worker", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples, since = [], 0
    try:
        for injection in range(injections + 1):
            def all_stepped(count):
                new = [[t for t, _ in steps_of(folder, rank) if t > since] for rank in range(workers)]
                return new if all(len(times) >= count for times in new) else None

            new = wait_for(launcher, lambda: all_stepped(1))
            if since:
                samples.append((max(times[0] for times in new) - since) / 1e6)
            if injection == injections:
                break
            wait_for(launcher, lambda: all_stepped(CALM_STEPS))
            victim = steps_of(folder, injection % workers)[-1][1]
            since = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
    finally:
        launcher.terminate()
        launcher.wait()
    return samples


def main():
    if sys.argv[1] == "--worker":
        return worker(pathlib.Path(sys.argv[2]))
    if subprocess.run([sys.executable, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"torchrun is left out: {sys.executable} has no torch (set TROUPE_BENCH_PYTHON to one that has)",
              file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        injections = int(sys.argv[2]) if len(sys.argv) > 2 else 5
        print(json.dumps(measure(int(sys.argv[1]), injections, pathlib.Path(folder))))
    return None


main()
