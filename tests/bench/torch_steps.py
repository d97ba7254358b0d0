#!/usr/bin/python3
"""Samples per second of the same training steps in PyTorch: the peer of capstan_bench_engine.

Inside the clock, per step: forward, mean cross-entropy, backward, plain SGD. The variants (eager or compiled, contiguous or
channels_last) are measured interleaved, run by run, and the best median counts. SGD is fused where the installed PyTorch has
that for CPUs (2.4 and later). One process per number of threads: OpenMP and OpenBLAS read theirs at start (--threads sets
both; it starts the process again).

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

import torch_nets

OPENBLAS_OPENMP = "/usr/lib/x86_64-linux-gnu/openblas-openmp"
REFERENCE_BLAS = "/blas/libblas.so"
LAYOUTS = ("contiguous", "channels_last")
VARIANTS = [f"{mode} {layout}" for mode in ("eager", "compiled") for layout in LAYOUTS]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet", choices=torch_nets.INPUTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--variants", default=",".join(VARIANTS[:2]), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--json", help="also write the result to this file")
    options = parser.parse_args()
    options.variants = options.variants.split(",")
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}, have {', '.join(VARIANTS)}")
    return options


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


def peak_bytes():
    """The peak memory of this process so far."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def make_step(torch, options, variant):
    mode, layout = variant.split()
    layout = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    torch.manual_seed(0)
    net = torch_nets.build(torch, options.model).to(memory_format=layout)
    labels = torch.randint(0, 10, (options.batch,))
    images = (torch.rand(options.batch, *torch_nets.INPUTS[options.model]) * 2 - 1).contiguous(memory_format=layout)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, **({"fused": True} if version >= (2, 4) else {}))

    def loss(images, labels):
        return torch.nn.functional.cross_entropy(net(images), labels)

    if mode == "compiled":
        # fullgraph: a part that cannot be compiled is an error and does not run eager.
        loss = torch.compile(loss, fullgraph=True, dynamic=False)

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = loss(images, labels)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def measure(steps, options):
    """{variant: samples per second of each run}, interleaved."""
    counts = {}
    for variant, step in steps.items():
        for _ in range(3):
            step()
        start = time.perf_counter()
        step()
        counts[variant] = max(1, int(options.seconds / (time.perf_counter() - start)))
    rates = {variant: [] for variant in steps}
    for _ in range(options.runs):
        for variant, step in steps.items():
            start = time.perf_counter()
            for _ in range(counts[variant]):
                step()
            rates[variant].append(counts[variant] * options.batch / (time.perf_counter() - start))
    return rates


def main():
    options = parse()
    restart_with_threads(options.threads)
    import torch
    refuse_reference_blas()

    torch.set_num_threads(options.threads)
    before = peak_bytes()
    rates = measure({variant: make_step(torch, options, variant) for variant in options.variants}, options)
    best = max(rates, key=lambda variant: statistics.median(rates[variant]))
    runs = sorted(rates[best])
    result = {
        "system": f"PyTorch {torch.__version__}, {best}", "model": options.model, "threads": options.threads,
        "batch": options.batch, "dtype": "float32", "samples_per_second": statistics.median(runs),
        "p10": runs[len(runs) // 10], "p90": runs[-1 - len(runs) // 10], "runs": rates[best],
        "medians": {variant: statistics.median(values) for variant, values in rates.items()},
        "peak_bytes": peak_bytes(), "peak_bytes_before": before,
    }
    print(f"{result['system']:42} {options.model:11} {options.threads} threads  batch {options.batch}  "
          f"{result['samples_per_second']:9.0f} samples/s  {result['p10']:.0f} to {result['p90']:.0f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([result], file, indent=1)


if __name__ == "__main__":
    main()
