#!/usr/bin/python3
"""Samples per second of the same training steps in PyTorch: the peer of capstan_bench_engine.

Inside the clock, per step: forward, mean cross-entropy, backward, plain SGD. Each configuration is measured
in both memory layouts, interleaved run by run, and the better median counts. One process per number of
threads: OpenMP and OpenBLAS read theirs at start (--threads sets both; it starts the process again).

Debian: apt-get install --no-install-recommends python3-torch libopenblas0-openmp. The OpenMP build of
OpenBLAS is put first where it is installed: the pthread build takes both cores even for one thread. The
reference BLAS, which Debian installs where nothing is said, is refused: with it PyTorch has a third to a half of its speed.
"""
import argparse
import json
import os
import statistics
import sys
import time

OPENBLAS_OPENMP = "/usr/lib/x86_64-linux-gnu/openblas-openmp"
REFERENCE_BLAS = "/blas/libblas.so"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet", choices=["lenet", "lenet_d2l"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--json", help="also write the result to this file")
    return parser.parse_args()


def restart_with_threads(threads):
    want = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    path = os.environ.get("LD_LIBRARY_PATH", "")
    if os.path.isdir(OPENBLAS_OPENMP) and OPENBLAS_OPENMP not in path.split(":"):
        want["LD_LIBRARY_PATH"] = OPENBLAS_OPENMP + (":" + path if path else "")
    if any(os.environ.get(key) != value for key, value in want.items()):
        os.environ.update(want)
        os.execv(sys.executable, [sys.executable] + sys.argv)


def refuse_reference_blas():
    with open("/proc/self/maps", encoding="utf-8") as file:
        slow = next((line.split()[-1] for line in file if REFERENCE_BLAS in line), None)
    if slow:
        sys.exit(f"PyTorch runs on the reference BLAS ({slow}): apt-get install --no-install-recommends libopenblas0-openmp")


def main():
    options = parse()
    restart_with_threads(options.threads)
    import torch
    from torch import nn
    refuse_reference_blas()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    def build():
        def relu():
            return nn.ReLU(inplace=True)

        if options.model == "lenet":
            return nn.Sequential(
                nn.Conv2d(1, 6, 5), relu(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), relu(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(400, 120), relu(), nn.Linear(120, 84), relu(), nn.Linear(84, 10))
        return nn.Sequential(
            nn.Conv2d(1, 20, 3), relu(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), relu(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(800, 128), relu(), nn.Linear(128, 10))

    labels = torch.randint(0, 10, (options.batch,))
    images = torch.rand(options.batch, 1, 28, 28) * 2 - 1
    steps = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        net = build().to(memory_format=layout)
        x = images.clone(memory_format=layout)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        loss_function = nn.CrossEntropyLoss()

        def step(net=net, x=x, optimizer=optimizer, loss_function=loss_function):
            optimizer.zero_grad(set_to_none=True)
            loss_function(net(x), labels).backward()
            optimizer.step()

        steps["nchw" if layout == torch.contiguous_format else "channels_last"] = step

    counts = {}
    for layout, step in steps.items():
        for _ in range(3):
            step()
        start = time.perf_counter()
        step()
        counts[layout] = max(1, int(options.seconds / (time.perf_counter() - start)))
    rates = {layout: [] for layout in steps}
    for _ in range(options.runs):
        for layout, step in steps.items():
            start = time.perf_counter()
            for _ in range(counts[layout]):
                step()
            rates[layout].append(counts[layout] * options.batch / (time.perf_counter() - start))
    best = max(rates, key=lambda layout: statistics.median(rates[layout]))
    runs = sorted(rates[best])
    result = {
        "system": f"PyTorch {torch.__version__}, {best}", "model": options.model, "threads": options.threads,
        "batch": options.batch, "dtype": "float32", "samples_per_second": statistics.median(runs),
        "p10": runs[len(runs) // 10], "p90": runs[-1 - len(runs) // 10], "runs": rates[best],
        "medians": {layout: statistics.median(values) for layout, values in rates.items()},
    }
    print(f"{result['system']:34} {options.model:10} {options.threads} threads  batch {options.batch}  "
          f"{result['samples_per_second']:9.0f} samples/s  {result['p10']:.0f} to {result['p90']:.0f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([result], file, indent=1)


if __name__ == "__main__":
    main()
