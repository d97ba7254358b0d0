"""What tests/gpu/run and tests/gpu/try say and count, without a card."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True


def load(name):
    loader = importlib.machinery.SourceFileLoader(name + "_script", os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


RUN = load("run")
TRY = load("try")


def script(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!" + sys.executable + "\n" + textwrap.dedent(text))
    os.chmod(path, 0o755)
    return path


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpu-run-test")
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder], check=True)

    def runner(self, seconds=60):
        runner = RUN.Runner(self.folder, seconds)
        self.addCleanup(runner.log.close)
        return runner

    def quietly(self, function, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            function(*arguments)
        return text.getvalue()

    def test_without_a_gpu_it_says_so_and_ends_with_3(self):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OUT": self.folder}
        env.pop("CAPSTAN_TEST_DEVICES", None)
        result = subprocess.run([sys.executable, os.path.join(HERE, "run")], env=env, capture_output=True, text=True,
                                timeout=60, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1, result.stdout)
        self.assertIn("no GPU here, nothing was run: ", result.stdout)

    def test_a_stage_that_hangs_or_fails_hides_no_other(self):
        runner = self.runner()
        start = time.monotonic()

        def stages():
            runner.run("hangs", ["sleep", "60"], 5)
            runner.run("fails", ["false"], 5)
            runner.run("is absent", [self.folder + "/nothing"], 5)
            runner.run("passes", ["true"], 5)

        self.quietly(stages)
        self.assertLess(time.monotonic() - start, 40)
        self.assertEqual([stage["result"] for stage in runner.stages], ["FAILED", "FAILED", "FAILED", "passed"])
        self.assertIn("stopped at its limit of 5 s", runner.stages[0]["detail"])
        self.assertIn("exit status 1", runner.stages[1]["detail"])

    def test_no_stage_starts_when_no_time_is_left(self):
        runner = self.runner(seconds=1)
        self.quietly(runner.run, "late", ["true"], 60)
        self.assertEqual(runner.stages, [{"name": "late", "result": "skipped", "detail": "no time is left"}])

    def test_a_suite_without_a_test_is_a_failure(self):
        runner = self.runner()
        self.quietly(runner.run, "suite", ["true"], 30, None, os.path.join(self.folder, "none.json"))
        self.assertEqual(runner.stages[0]["result"], "FAILED")

    def test_the_contract_runs_on_the_devices_that_are_named(self):
        script(self.folder, "bin/capstan_plugin_device_contract_test", """
            import json, os, sys
            output = [a for a in sys.argv if a.startswith("--gtest_output=json:")][0][len("--gtest_output=json:"):]
            print(os.environ["CAPSTAN_TEST_DEVICES"], [a for a in sys.argv if "filter" in a])
            tests = [{"status": "RUN", "result": "COMPLETED"}, {"status": "RUN", "result": "SKIPPED"},
                     {"status": "NOTRUN", "result": "SUPPRESSED"}]
            json.dump({"testsuites": [{"testsuite": tests}]}, open(output, "w"))
            """)
        runner = self.runner()
        self.quietly(RUN.contract, runner, self.folder, "cuda:0,cuda:0",
                     {"CAPSTAN_GOLDEN": __file__, "CAPSTAN_DATA": "x"}, self.folder)
        self.assertEqual([stage["result"] for stage in runner.stages], ["passed", "passed"])
        self.assertIn("1 passed, 0 failed, 1 skipped", runner.stages[0]["detail"])
        runner.log.flush()
        with open(os.path.join(self.folder, "log.txt"), encoding="utf-8") as file:
            log = file.read()
        self.assertIn("cuda:0,cuda:0 ['--gtest_filter=Card/*:CardTest.*-*GoldenRun*']", log)
        self.assertIn("['--gtest_filter=Card/*GoldenRun*']", log)

    def test_every_precision_is_measured_and_profiled_on_a_card(self):
        script(self.folder, "bin/capstan_bench_engine", """
            import json, os, sys
            def option(name): return sys.argv[sys.argv.index(name) + 1]
            if "CAPSTAN_CUDA_PROFILE" in os.environ:
                open(os.environ["CAPSTAN_CUDA_PROFILE"], "a").write(option("--precision") + " table\\n")
            else:
                assert option("--json").endswith("host.json") == ("--host-updates" in sys.argv)
                json.dump([{"model": "lenet", "dtype": option("--precision"), "batch": 256,
                            "samples_per_second": 1.0, "p10": 1, "p90": 1}], open(option("--json"), "w"))
            """)
        runner = self.runner()
        rows = []
        self.quietly(lambda: rows.extend(RUN.engine_benchmark(runner, self.folder, "cuda:0", 256, {}, self.folder)))
        self.assertEqual([(row["dtype"], row["mode"]) for row in rows],
                         [(dtype, mode) for dtype in ("fp32", "tf32", "bf16", "fp16") for mode in ("capstan", "host")])
        self.assertEqual({stage["result"] for stage in runner.stages}, {"passed"})
        self.assertEqual(len(runner.stages), 12)
        with open(os.path.join(self.folder, "roofline.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read().splitlines(), ["fp32 table", "tf32 table", "bf16 table", "fp16 table"])
        rows.clear()
        self.quietly(lambda: rows.extend(RUN.engine_benchmark(self.runner(), self.folder, "cpu", 256, {}, self.folder)))
        self.assertEqual([row["dtype"] for row in rows], ["fp32"])

    def test_the_table_has_the_ratios(self):
        rows = [{"model": "lenet", "dtype": "fp32", "batch": 256, "mode": mode, "samples_per_second": rate,
                 "p10": rate, "p90": rate} for mode, rate in (("eager", 100.0), ("graph", 200.0), ("capstan", 300.0))]
        rows.append({"model": "lenet", "dtype": "fp32", "batch": 256, "mode": "compile", "error": "none"})
        lines = RUN.table(rows)
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[1].split(), ["lenet", "fp32", "256", "capstan", "300", "300", "300", "3.00", "1.50"])

    def test_the_trial_of_the_services_needs_the_metrics_of_the_card(self):
        # A `capstan run` that serves a page of metrics for a moment.
        script(self.folder, "capstan", """
            import http.server, os, sys, threading
            page = open(os.environ["PAGE"], "rb").read()
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200); self.end_headers(); self.wfile.write(page); asked.set()
                def log_message(self, *a): pass
            asked = threading.Event()
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print("[w0] event=listening grpc=unix:x http=127.0.0.1:%d" % server.server_port, flush=True)
            asked.wait(20)
            """)
        page = os.path.join(self.folder, "page")
        seen = os.path.join(self.folder, "seen.json")
        steps = 'capstan_worker_steps_total{job_id="j",rank="0"} 12\n'
        card = ('capstan_gpu_info{UUID="GPU-a",gpu="0"} 1\ncapstan_gpu_memory_used_bytes{UUID="GPU-a",gpu="0"} 5e+08\n'
                'capstan_gpu_utilization_ratio{UUID="GPU-a",gpu="0"} 0.5\n')
        for text, device, code in ((steps + card, "cuda:0", 0), (steps, "cuda:0", 1), (steps, "cpu", 0)):
            with open(page, "w", encoding="utf-8") as file:
                file.write(text)
            result = subprocess.run([sys.executable, os.path.join(HERE, "try"), "--device", device, "--json", seen],
                                    env={**os.environ, "CAPSTAN_BIN": self.folder, "PAGE": page}, timeout=90,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
            with open(seen, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["capstan_worker_steps_total"], 12)
        self.assertEqual(TRY.GPU_FAMILIES[0], "capstan_gpu_info")

    def test_an_idle_service_that_takes_of_a_card_is_a_failure(self):
        script(self.folder, "capstan_gpu_worker", """
            import os, time
            open(os.environ["STARTED"], "w").close()
            print("event=listening grpc=unix:x http=off", flush=True)
            time.sleep(60)
            """)
        script(self.folder, "nvidia-smi", """
            import os, sys
            words = os.environ["AFTER" if os.path.exists(os.environ["STARTED"]) else "BEFORE"].split()
            print("\\n".join(words[1:] if "apps" in sys.argv[1] else words[:1]))
            """)
        started = os.path.join(self.folder, "started")
        for after, problem in (("500 11", ""), ("510 11", ""), ("600 11", "takes 100 MiB of the cards"),
                               ("500 11 12", "made process 12 use a card")):
            if os.path.exists(started):
                os.remove(started)
            env = {**os.environ, "PATH": self.folder + ":" + os.environ["PATH"], "CAPSTAN_BIN": self.folder,
                   "STARTED": started, "BEFORE": "500 11", "AFTER": after}
            result = subprocess.run([sys.executable, os.path.join(HERE, "try"), "--idle"], env=env, timeout=90,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 1 if problem else 0, result.stdout + result.stderr)
            self.assertIn(problem, result.stderr)


if __name__ == "__main__":
    unittest.main()
