"""The output and the counts of tests/gpu/run, tests/gpu/try and tests/gpu/torch_bench.py, without a card."""
import contextlib
import gc
import importlib.machinery
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock
import weakref

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True


def load(name):
    loader = importlib.machinery.SourceFileLoader(name + "_script", os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


RUN = load("run")
TRY = load("try")
TORCH_BENCH = load("torch_bench.py")
# A GoogleTest with one passing test, which writes its results to the requested file.
GOOGLE_TEST = """
    import json, sys
    output = [a for a in sys.argv if a.startswith("--gtest_output=json:")][0][len("--gtest_output=json:"):]
    json.dump({"testsuites": [{"testsuite": [{"status": "RUN", "result": "COMPLETED"}]}]}, open(output, "w"))
    """


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

    def test_a_stage_without_time_is_a_failure_and_says_so(self):
        runner = self.runner(seconds=1)
        self.quietly(runner.run, "late", ["true"], 60)
        self.assertEqual(runner.stages, [{"name": "late", "result": "NO TIME",
                                          "detail": "no time was left, its limit is 60 s"}])
        self.assertFalse(runner.passed())

    def test_a_stage_that_the_end_of_the_call_stops_says_so(self):
        runner = self.runner(seconds=6)
        self.quietly(runner.run, "cut", ["sleep", "60"], 30)
        self.assertEqual(runner.stages[0]["result"], "NO TIME")
        self.assertRegex(runner.stages[0]["detail"], r"^\d s, stopped: no time was left, its limit is 30 s$")
        self.assertFalse(runner.passed())

    def test_stages_are_named_in_groups_or_one_by_one(self):
        every = ["contract", "engine", "torch", "services", "sanitizer", "compile"]
        for text, stages, suffix in (("first,rest", every, "-" + "-".join(every)),
                                     ("first", every[:4], ""),
                                     ("rest", every[4:], "-rest"),
                                     ("compile,sanitizer", every[4:], "-rest"),
                                     ("torch", ["torch"], "-torch"),
                                     ("rest,contract", ["contract", *every[4:]], "-contract-sanitizer-compile")):
            self.assertEqual(RUN.parse_stages(text), stages)
            self.assertEqual(RUN.suffix(stages), suffix)
        for text in ("", "first,", "fast"):
            with self.assertRaisesRegex(ValueError, "no stage '(fast)?', have first, rest, contract"):
                RUN.parse_stages(text)

    def whole_run(self, *arguments):
        """tests/gpu/run with the CPU in place of the card, and an archive of programs that do nothing."""
        folder = os.path.join(self.folder, "capstan-gpu")
        if not os.path.exists(folder):
            script(folder, "bin/capstan_cpu_device_contract_test", GOOGLE_TEST)
            script(folder, "bin/capstan_bench_engine", """
                import json, sys
                json.dump([{"model": "lenet", "dtype": "fp32", "batch": 256, "samples_per_second": 1.0, "p10": 1,
                            "p90": 1}], open(sys.argv[sys.argv.index("--json") + 1], "w"))
                """)
            script(folder, "torch_bench.py", "")
            with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
                json.dump({"revision": "abc", "missing": []}, file)
            subprocess.run(["tar", "-cf", "gpu.tar", "capstan-gpu"], cwd=self.folder, check=True)
        env = {**os.environ, "CAPSTAN_TEST_DEVICES": "cpu", "OUT": os.path.join(self.folder, "out")}
        archive = os.path.join(self.folder, "gpu.tar")
        return subprocess.run([sys.executable, os.path.join(HERE, "run"), archive, *arguments], env=env,
                              capture_output=True, text=True, timeout=60, check=False)

    def results(self, name):
        with open(os.path.join(self.folder, "out", name), encoding="utf-8") as file:
            return json.load(file)

    def test_two_calls_keep_each_others_results(self):
        first = self.whole_run()
        second = self.whole_run("--stages", "rest")
        self.assertEqual((first.returncode, second.returncode), (0, 0), first.stdout + second.stdout)
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "out"))),
                         ["log-rest.txt", "log.txt", "results-rest.json", "results.json"])
        both = self.results("results.json"), self.results("results-rest.json")
        self.assertEqual([[stage["name"] for stage in results["stages"]] for results in both],
                         [["contract on cpu", "golden steps on cpu", "engine benchmark fp32 capstan",
                           *self.torch_stages("eager"), "services"], self.torch_stages("compile")])
        self.assertEqual([results["asked"] for results in both],
                         [["contract", "engine", "torch", "services"], ["sanitizer", "compile"]])
        self.assertEqual([len(results["benchmarks"]) for results in both], [1, 0])
        self.assertEqual(both[0]["revision"], "abc")

    @staticmethod
    def torch_stages(mode):
        return ["PyTorch" if importlib.util.find_spec("torch") is None else f"PyTorch {mode}"]

    def test_a_call_with_too_little_time_ends_with_1(self):
        result = self.whole_run("--stages", "contract", "--seconds", "1")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("NO TIME  contract on cpu: no time was left", result.stdout)
        self.assertEqual(self.results("results-contract.json")["stages"][0]["result"], "NO TIME")

    def test_services_that_cannot_be_unpacked_leave_the_results_of_others(self):
        result = self.whole_run("--stages", "contract,services", "--services", __file__)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual([stage["result"] for stage in self.results("results-contract-services.json")["stages"]],
                         ["passed", "skipped", "FAILED"])

    def test_a_stage_that_there_is_not_is_wrong_use(self):
        for arguments, text in ((("--stages", "fast"), "no stage 'fast'"),
                                (("--stages", "services"), "needs --services"),
                                (("--services", self.folder + "/none"), "none; make it with tests/gpu/bundle")):
            result = self.whole_run(*arguments)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(text, result.stderr)

    def test_tests_of_a_suite_that_is_stopped_or_dies_are_counted_from_its_log(self):
        program = script(self.folder, "suite", """
            import os, sys, time
            print("[ RUN      ] Card/A.One/cuda0\\n[       OK ] Card/A.One/cuda0 (12 ms)")
            print("[ RUN      ] Card/A.Two/cuda0\\nwrong\\n[  FAILED  ] Card/A.Two/cuda0, where GetParam() = 4 (3 ms)")
            print("[ RUN      ] Card/A.Three/cuda0\\n[  SKIPPED ] Card/A.Three/cuda0 (0 ms)")
            print("[ RUN      ] Card/A.Four/cuda0\\nwithout an end of line[       OK ] Card/A.Four/cuda0 (12 ms)")
            if sys.argv[1] == "ends":
                print("[  FAILED  ] 1 test, listed below:\\n[  FAILED  ] Card/A.Two/cuda0, where GetParam() = 4")
                sys.stdout.flush()
                os._exit(0)
            print("[ RUN      ] Card/A.Five/cuda0", flush=True)
            if sys.argv[1] == "dies":
                os.kill(os.getpid(), 11)
            time.sleep(60)
            """)
        runner = self.runner()
        for how in ("hangs", "dies", "ends"):
            self.quietly(runner.run, how, [program, how], 3, None, os.path.join(self.folder, "none.json"))
        counts = "2 passed, 1 failed, 1 skipped, "
        for stage, end in zip(runner.stages, (r"3 s, in Card/A.Five/cuda0, stopped at its limit of 3 s",
                                              r"\d s, in Card/A.Five/cuda0, ended by signal 11", r"\d s")):
            self.assertEqual(stage["result"], "FAILED")
            self.assertRegex(stage["detail"], f"^{counts}{end}$")

    def test_a_suite_that_writes_no_results_did_not_pass(self):
        runner = self.runner()
        self.quietly(runner.run, "suite", ["echo", "[       OK ] A.One (1 ms)"], 30, None, self.folder + "/none.json")
        self.assertEqual(runner.stages[0]["result"], "FAILED")

    def test_the_sanitizer_is_kept_to_our_kernels_in_the_words_of_its_version(self):
        script(self.folder, "bin/capstan_plugin_device_contract_test", GOOGLE_TEST)
        tool = script(self.folder, "compute-sanitizer", """
            import os, subprocess, sys
            if "--help" in sys.argv:
                print(os.environ["HELP"])
                sys.exit(0)
            first = [i for i, a in enumerate(sys.argv) if a.endswith("contract_test")][0]
            open(os.environ["SEEN"], "a").write(" ".join(sys.argv[1:first]) + "\\n")
            subprocess.run(sys.argv[first:], check=True)
            print("========= ERROR SUMMARY: 2 errors")
            sys.exit(int(os.environ["ERRORS"]))
            """)
        seen = os.path.join(self.folder, "seen")
        common = "--error-exitcode 9 --target-processes all"
        # The help texts of versions 2025.3 (of CUDA 13.0), 2022 and 2020. The last one does not have the option.
        for text, memcheck, both, errors in (
                ("  --kernel-name-exclude arg\n  --kernel-name arg  key1=val1\n  --report-api-errors arg (=explicit)",
                 " --report-api-errors no", " --kernel-name kernel_substring=capstan", 0),
                ("  --kernel-regex arg\n  --kernel-regex-exclude arg\n  --report-api-errors arg",
                 " --report-api-errors no", " --kernel-regex kns=capstan", 9),
                ("  --filter arg", "", " --filter kns=capstan", 0),
                ("  --kernel-name-exclude arg", "", "", 0)):
            if os.path.exists(seen):
                os.remove(seen)
            runner = self.runner()
            with unittest.mock.patch.object(RUN, "find_sanitizer", lambda: tool), \
                    unittest.mock.patch.dict(os.environ, {"HELP": text, "SEEN": seen, "ERRORS": str(errors)}):
                self.quietly(RUN.sanitizer, runner, self.folder, {}, self.folder)
            with open(seen, encoding="utf-8") as file:
                self.assertEqual(file.read().splitlines(), [f"--tool memcheck {common}{memcheck}{both}",
                                                            f"--tool racecheck {common}{both}"])
            self.assertEqual([stage["result"] for stage in runner.stages], ["FAILED" if errors else "passed"] * 2)
            self.assertIn("1 passed, 0 failed", runner.stages[0]["detail"])
            self.assertTrue(runner.stages[0]["detail"].endswith(", ERROR SUMMARY: 2 errors"), runner.stages[0])

    def test_every_precision_is_compiled_in_a_process_of_its_own(self):
        script(self.folder, "torch_bench.py", """
            import json, os, sys
            def option(name): return sys.argv[sys.argv.index(name) + 1]
            rows = [{"mode": mode, "dtype": dtype, "model": "lenet", "batch": 256, "process": os.getpid()}
                    for dtype in option("--dtype").split(",") for mode in option("--mode").split(",")]
            json.dump(rows, open(option("--json"), "w"))
            sys.exit(1 if option("--dtype") == "tf32" else 0)
            """)
        runner = self.runner()
        rows = []
        with unittest.mock.patch.object(RUN.importlib.util, "find_spec", return_value=object()):
            for compiled in (False, True):
                self.quietly(lambda: rows.extend(
                    RUN.torch_benchmark(runner, self.folder, "cuda:0", 256, self.folder, compiled)))
        every = ("fp32", "tf32", "bf16", "fp16")
        self.assertEqual([(stage["name"], stage["result"]) for stage in runner.stages],
                         [("PyTorch eager", "passed"), ("PyTorch graph", "passed"),
                          *((f"PyTorch compile {dtype}", "FAILED" if dtype == "tf32" else "passed")
                            for dtype in every)])
        # A mode that fails keeps its rows, and those of the others.
        self.assertEqual([(row["mode"], row["dtype"]) for row in rows],
                         [*(("eager", dtype) for dtype in every), *(("graph", dtype) for dtype in every),
                          *((mode, dtype) for dtype in every for mode in ("compile", "compile-graph"))])
        processes = [{row["process"] for row in rows if row["mode"].startswith("compile") and row["dtype"] == dtype}
                     for dtype in every]
        self.assertEqual([len(ids) for ids in processes], [1] * 4)
        self.assertEqual(len(set.union(*processes)), 4)

    def test_a_captured_step_keeps_alive_what_its_graph_works_on(self):
        nets = []

        class Module:
            def __init__(self):
                nets.append(weakref.ref(self))

            def to(self, **_):
                return self

            def parameters(self):
                return []

            def __call__(self, *_):
                return unittest.mock.MagicMock()

        for mode in ("graph", "compile-graph"):
            torch = unittest.mock.MagicMock()
            torch.nn.Module = Module
            torch.compile = lambda net, **_: net
            card = unittest.mock.Mock(type="cuda")
            replay = TORCH_BENCH.make_step(torch, "lenet", mode, "layout", 8, card, "fp32")
            gc.collect()
            self.assertIsNotNone(nets[-1]())
            torch.cuda.graph.assert_called_once_with(torch.cuda.CUDAGraph.return_value,
                                                     stream=torch.cuda.Stream.return_value)
            replay()
            torch.cuda.CUDAGraph.return_value.replay.assert_called_once_with()
            del replay
            gc.collect()
            self.assertIsNone(nets[-1]())

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
        rows.append({"model": "lenet", "dtype": "fp32", "batch": 256, "mode": "compile", "error": "Error: out\nof it"})
        lines = RUN.table(rows)
        self.assertEqual(len(lines), 5)
        self.assertEqual(lines[4].split(), ["lenet", "fp32", "256", "compile", "Error:", "out", "of", "it"])
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

    def test_the_job_of_a_trial_that_is_stopped_goes_with_it(self):
        script(self.folder, "capstan", """
            import os, time
            open(os.environ["STARTED"], "w").write(str(os.getpid()))
            time.sleep(60)
            """)
        started = os.path.join(self.folder, "started")
        runner = self.runner()
        self.quietly(runner.run, "services", [sys.executable, os.path.join(HERE, "try"), "--device", "cpu"], 3,
                     {"CAPSTAN_BIN": self.folder, "STARTED": started})
        self.assertIn("stopped at its limit", runner.stages[0]["detail"])
        with open(started, encoding="utf-8") as file:
            process = int(file.read())
        with self.assertRaises(ProcessLookupError):
            for _ in range(100):  # it was killed, but may not have ended yet
                os.kill(process, 0)
                time.sleep(0.1)
            os.kill(process, signal.SIGKILL)

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
