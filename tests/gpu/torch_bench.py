#!/usr/bin/env python3
"""Samples per second of the same training steps in PyTorch on a GPU: the peer of capstan_bench_engine.

The clock measures, for each step: forward, mean cross-entropy, backward, plain SGD. The batch is on the GPU,
and the loss is not read. The device is synchronised before every reading of the clock. Modes, each a way in
which people train:

  eager          operation by operation
  graph          the whole eager step, captured once as a CUDA graph and replayed
  compile        torch.compile of network and loss, mode reduce-overhead: fused kernels, and PyTorch's own CUDA
                 graphs of forward and backward
  compile-graph  torch.compile in its default mode, with the whole step captured as in graph

These networks are so small that launches cost more than arithmetic. So compile uses PyTorch's mode for fewer
launches, and compile-graph launches only the graph. max-autotune is not used: for every product and convolution
it compiles and times dozens of kernels, which takes minutes for a network, to choose among kernels of a few
microseconds. If a network would run eager under the name of compile, the row is an error.

Each mode runs in both memory layouts, interleaved run by run, and the better median counts. fp32 is real
float32. tf32 lets the matrix units round the factors. bf16 and fp16 are autocast (fp16 without a scaler,
because only the time matters here). A failed row has its error in place of figures. The others continue, and
the exit status is 1.
"""
import argparse
import importlib
import json
import statistics
import sys
import time

MODES = ("eager", "graph", "compile", "compile-graph")
CAPTURED = ("graph", "compile-graph")
# torch.compile's mode for each of ours. None is its default.
COMPILED = {"compile": "reduce-overhead", "compile-graph": None}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet,lenet_d2l")
    parser.add_argument("--mode", default=",".join(MODES))
    parser.add_argument("--dtype", default="fp32,tf32,bf16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a run")
    parser.add_argument("--json", help="also write the results to this file, after every row")
    options = parser.parse_args()
    unknown = sorted(set(options.mode.split(",")) - set(MODES))
    if unknown:
        parser.error(f"no mode {', '.join(unknown)}, have {', '.join(MODES)}")
    return options


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


def with_loss(torch, net):
    """Network and loss as one module, so that torch.compile may fuse everything."""

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net
            self.loss = torch.nn.CrossEntropyLoss()

        def forward(self, images, labels):
            return self.loss(self.net(images), labels)

    return WithLoss()


def make_step(torch, name, mode, layout, batch, device, dtype):
    """A function that trains one step in that mode. It keeps alive what the step uses."""
    torch.manual_seed(0)
    net = with_loss(torch, build(torch, name)).to(device=device, memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=device)
    images = (torch.rand(batch, 1, 28, 28, device=device) * 2 - 1).contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    forward = net
    if mode in COMPILED:
        # fullgraph: a part that cannot be compiled is an error and does not run eager. dynamic=False: the second layout is compiled
        # for its own strides, not generalised over both.
        forward = torch.compile(net, mode=COMPILED[mode], fullgraph=True, dynamic=False)

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)

    def backward():
        # Graphs would not replay casts that autocast caches.
        with torch.autocast(device.type, dtype=half, enabled=half is not None, cache_enabled=mode not in CAPTURED):
            loss = forward(images, labels)
        loss.backward()

    def step():
        optimizer.zero_grad(set_to_none=True)
        backward()
        optimizer.step()

    if mode not in CAPTURED:
        return step
    # As the documentation of torch.cuda.graph asks, some steps run on a side stream before the capture. The capture is on that same
    # stream, so that nothing from the first steps, which also compile, uses another one.
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, stream=side):
        backward()
        optimizer.step()

    def replay():
        graph.replay()

    # A graph stores addresses, not tensors. Without these objects it would use memory that is free or belongs to the other layout
    # by then.
    replay.keeps = (net, images, labels, optimizer)
    return replay


def measure(steps, options, synchronize):
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


def prepare_compiler():
    """Forgets what earlier rows compiled. Returns PyTorch's counts of what is compiled from now on."""
    dynamo = importlib.import_module("torch._dynamo")
    dynamo.reset()
    if hasattr(dynamo.config, "fail_on_recompile_limit_hit"):
        dynamo.config.fail_on_recompile_limit_hit = True  # otherwise such a network silently runs eager
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    return counters


def measure_row(torch, model, mode, dtype, device, options, synchronize):
    """The figures of one row of the table."""
    counters = prepare_compiler() if mode in COMPILED else None
    steps = {label: make_step(torch, model, mode, layout, options.batch, device, dtype)
             for label, layout in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last))}
    rates = measure(steps, options, synchronize)
    best = max(rates, key=lambda layout: statistics.median(rates[layout]))
    runs = sorted(rates[best])
    row = {"layout": best, "samples_per_second": statistics.median(runs), "p10": runs[len(runs) // 10],
           "p90": runs[-1 - len(runs) // 10], "runs": rates[best],
           "medians": {layout: statistics.median(values) for layout, values in rates.items()}}
    if counters is not None:
        row["compiled_graphs"] = counters["stats"]["unique_graphs"]
        if row["compiled_graphs"] < len(steps):
            raise RuntimeError(f"torch.compile compiled {row['compiled_graphs']} networks, want {len(steps)}")
        # Only for compile: the parts that PyTorch would not run as CUDA graphs, for reasons that it logs.
        row["graphs_skipped"] = counters["inductor"]["cudagraph_skips"]
    return row


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
        # Not fp32_precision, which will replace these: PyTorch 2.9 and later refuse a mixture of both, and torch.compile still
        # reads these.
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        torch.backends.cudnn.benchmark = True
        # Modes are the outer loop: a failed capture may make later ones fail, and the safer modes come first.
        for mode in options.mode.split(","):
            for model in options.model.split(","):
                row = {"system": f"PyTorch {torch.__version__}", "mode": mode, "model": model, "device": name,
                       "batch": options.batch, "dtype": dtype}
                start = time.perf_counter()
                try:
                    row.update(measure_row(torch, model, mode, dtype, device, options, synchronize))
                except Exception as error:  # pylint: disable=broad-except  # one row, not the whole table
                    row["error"] = f"{type(error).__name__}: {error}"[:500]
                    print(f"{mode:13} {model:10} {dtype}: {row['error']}", flush=True)
                else:
                    print(f"{mode:13} {model:10} {dtype} {row['layout']} batch {options.batch}  "
                          f"{row['samples_per_second']:12.0f} samples/s  {row['p10']:.0f} to {row['p90']:.0f}  "
                          f"(in {time.perf_counter() - start:.0f} s)", flush=True)
                results.append(row)
                if options.json:
                    with open(options.json, "w", encoding="utf-8") as file:
                        json.dump(results, file, indent=1)
    return 1 if any("error" in row for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
