#!/usr/bin/env python3
"""Samples per second of the same training steps in PyTorch on a GPU: the peer of capstan_bench_engine.

Inside the clock, per step: forward, mean cross-entropy, backward, plain SGD; the batch lies on the GPU, the
loss is not read. The device is synchronised before every reading of the clock. Modes, each a way that
people train: eager; compile (torch.compile of the whole network, mode max-autotune-no-cudagraphs); graph (the
whole step captured once as a CUDA graph and replayed). Each in both memory layouts, interleaved run by run;
the better median counts. fp32 is real float32, tf32 lets the matrix units round the factors, bf16 and fp16 are
autocast (fp16 without a scaler: only the time is of interest here).
"""
import argparse
import json
import statistics
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet,lenet_d2l")
    parser.add_argument("--mode", default="eager,graph,compile")
    parser.add_argument("--dtype", default="fp32,tf32,bf16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a run")
    parser.add_argument("--json", help="also write the results to this file, after every row")
    return parser.parse_args()


def build(torch, name):
    nn = torch.nn

    def relu():
        return nn.ReLU(inplace=True)

    if name == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5), relu(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), relu(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), relu(), nn.Linear(120, 84), relu(), nn.Linear(84, 10))
    if name == "lenet_d2l":
        return nn.Sequential(
            nn.Conv2d(1, 20, 3), relu(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), relu(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(800, 128), relu(), nn.Linear(128, 10))
    sys.exit(f"torch_bench: no model {name}, have lenet and lenet_d2l")


def make_step(torch, name, mode, layout, batch, device, dtype):
    """A function that trains one step, as that mode would."""
    torch.manual_seed(0)
    net = build(torch, name).to(device=device, memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=device)
    images = (torch.rand(batch, 1, 28, 28, device=device) * 2 - 1).contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loss_function = torch.nn.CrossEntropyLoss()
    forward = torch.compile(net, mode="max-autotune-no-cudagraphs") if mode == "compile" else net

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)

    def backward():
        with torch.autocast(device.type, dtype=half, enabled=half is not None, cache_enabled=mode != "graph"):
            loss = loss_function(forward(images), labels)
        loss.backward()

    def step():
        optimizer.zero_grad(set_to_none=True)
        backward()
        optimizer.step()

    if mode != "graph":
        return step
    # As the documentation of torch.cuda.graph asks: some steps on a side stream before the capture.
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        backward()
        optimizer.step()
    return graph.replay


def measure(torch, steps, options, synchronize):
    """{layout: rates}, interleaved."""
    counts = {}
    for layout, step in steps.items():
        for _ in range(5):
            step()
        synchronize()
        start = time.perf_counter()
        for _ in range(10):
            step()
        synchronize()
        counts[layout] = max(1, int(10 * options.seconds / max(1e-6, time.perf_counter() - start)))
    rates = {layout: [] for layout in steps}
    for _ in range(options.runs):
        for layout, step in steps.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(counts[layout]):
                step()
            synchronize()
            rates[layout].append(counts[layout] * options.batch / (time.perf_counter() - start))
    return rates


def main():
    options = parse()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch_bench: no PyTorch here: {error}")
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("torch_bench: this PyTorch sees no GPU")
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"

    def synchronize():
        if on_gpu:
            torch.cuda.synchronize(device)

    results = []
    for dtype in options.dtype.split(","):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        torch.backends.cudnn.benchmark = True
        for model in options.model.split(","):
            for mode in options.mode.split(","):
                row = {"system": f"PyTorch {torch.__version__}", "mode": mode, "model": model, "device": name,
                       "batch": options.batch, "dtype": dtype}
                try:
                    steps = {}
                    for label, layout in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
                        steps[label] = make_step(torch, model, mode, layout, options.batch, device, dtype)
                    rates = measure(torch, steps, options, synchronize)
                except Exception as error:  # pylint: disable=broad-except  # one row, not the whole table
                    row["error"] = f"{type(error).__name__}: {error}"[:500]
                    print(f"{mode:8} {model:10} {dtype}: {row['error']}", flush=True)
                else:
                    best = max(rates, key=lambda layout: statistics.median(rates[layout]))
                    runs = sorted(rates[best])
                    row.update({
                        "layout": best, "samples_per_second": statistics.median(runs),
                        "p10": runs[len(runs) // 10], "p90": runs[-1 - len(runs) // 10], "runs": rates[best],
                        "medians": {layout: statistics.median(values) for layout, values in rates.items()}})
                    print(f"{mode:8} {model:10} {dtype} {best} batch {options.batch}  "
                          f"{row['samples_per_second']:12.0f} samples/s  {row['p10']:.0f} to {row['p90']:.0f}",
                          flush=True)
                results.append(row)
                if options.json:
                    with open(options.json, "w", encoding="utf-8") as file:
                        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
