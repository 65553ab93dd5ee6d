"""What cairn-bench says of the machine that it ran on, and of what else ran there.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_manifest_test.py
"""
import os
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import manifest, processes, result_file  # noqa: E402  pylint: disable=wrong-import-position
from cairn_bench.processes import Process  # noqa: E402  pylint: disable=wrong-import-position

# pid 100 is "us"; 101 its daemon; 300 a shell that waits for compilers; 400 another one's program.
BEFORE = {(2, 0): Process("kernel threads", 0, 10), (100, 5): Process("cairn-bench", 1, 50),
          (101, 6): Process("cairn-kv-node", 100, 20), (300, 7): Process("make", 1, 5),
          (301, 8): Process("cc1plus", 300, 30), (400, 9): Process("other", 1, 1000)}
AFTER = {(2, 0): Process("kernel threads", 0, 12), (100, 5): Process("cairn-bench", 1, 90),
         (102, 60): Process("cairn-kv-node", 100, 25), (103, 61): Process("child", 102, 5),
         # 301 ended with 40 more ticks; its parent has them all now.
         (300, 7): Process("make", 1, 77), (302, 62): Process("cc1plus", 300, 9),
         (400, 9): Process("other", 1, 1100), (401, 63): Process("other", 1, 3)}

RESULTS = types.SimpleNamespace(to_json=lambda: {}, load=lambda value: None)


class ProcessesTest(unittest.TestCase):
    def test_others_are_all_but_a_program_and_what_it_started(self):
        said = processes.used_by_others(BEFORE, AFTER, 100)
        self.assertEqual(dict(said), {"kernel threads": 2, "make": 42, "cc1plus": 9, "other": 103})

    def test_what_ended_stands_with_the_one_that_is_left_and_counts_once(self):
        before = {(1, 0): Process("init", 0, 0), (5, 1): Process("bash", 1, 1), (3, 1): Process("ninja", 5, 500),
                  (4, 1): Process("cc1plus", 3, 40)}
        # The compiler ended with 60 ticks, then ninja with 520 of its own and of others.
        after = {(1, 0): Process("init", 0, 0), (5, 1): Process("bash", 1, 1 + 520 + 60)}
        self.assertEqual(dict(+processes.used_by_others(before, after, 100)), {"bash": 40})

    def test_ones_own_are_those_that_run_and_those_that_ended(self):
        self.assertEqual(processes.own(AFTER, 100), {(100, 5), (102, 60), (103, 61)})
        self.assertEqual(processes.own_ticks(AFTER, 100) - processes.own_ticks(BEFORE, 100), 120 - 70)

    def test_a_process_number_that_is_used_again_is_another_process(self):
        after = {**AFTER, (400, 99): Process("new", 1, 4)}
        del after[400, 9]
        self.assertEqual(processes.used_by_others(BEFORE, after, 100)["new"], 4)

    def test_names_may_have_spaces_and_parentheses(self):
        text = "12 (a (b) c) S 7 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 55 rest"
        self.assertEqual(processes.parse(text), ((12, 55), Process("a (b) c", 7, 10)))
        self.assertEqual(processes.parse(text.replace(" S 7 ", " S 2 "))[1].name, "kernel threads")

    def test_this_process_is_among_those_that_run(self):
        found = processes.scan()
        mine = processes.own(found, os.getpid())
        self.assertIn(os.getpid(), {pid for pid, _ in mine})
        self.assertLess(len(mine), len(found))


class ContentionTest(unittest.TestCase):
    def measure(self, before, after, ticks=((0, 0, 0), (400, 20, 1000))):
        with unittest.mock.patch.object(processes, "scan", side_effect=[before, after]), \
                unittest.mock.patch.object(manifest, "_processor_ticks", side_effect=ticks), \
                unittest.mock.patch("os.getpid", return_value=100):
            return manifest.Contention().to_json()

    def test_shares_are_of_all_processors_and_small_ones_have_no_name(self):
        said = self.measure(BEFORE, AFTER)
        self.assertEqual((said["other_cpu_share"], said["stolen_cpu_share"]), (0.35, 0.02))
        self.assertEqual(said["other_programs"], {"other": 0.103, "make": 0.042, "cc1plus": 0.009})
        self.assertIsNone(self.measure(BEFORE, AFTER, ((0, 0, 0), (0, 0, 0)))["other_cpu_share"])
        # Names never have more than all others together: here 128 ticks of 156 that were counted.
        said = self.measure(BEFORE, AFTER, ((0, 0, 0), (128, 0, 1000)))
        self.assertEqual((said["other_cpu_share"], said["other_programs"]["other"]), (0.078, 0.0515))

    def test_what_is_measured_here_is_a_share(self):
        said = manifest.Contention().to_json()
        for name in ("other_cpu_share", "stolen_cpu_share"):
            self.assertTrue(said[name] is None or 0 <= said[name] <= 1, said)

    def test_a_busy_machine_is_told_with_those_that_kept_it_busy(self):
        quiet = {"other_cpu_share": 0.05, "other_programs": {"cron": 0.05}}
        busy = {"other_cpu_share": 0.384, "stolen_cpu_share": 0.02, "other_programs": {"cc1plus": 0.31}}
        self.assertEqual(manifest.busy_note([]), "")
        self.assertEqual(manifest.busy_note([quiet, {"other_cpu_share": None}]), "")
        self.assertIn("other programs took 38% of its processors' time (cc1plus 31%, other virtual machines 2%).",
                      manifest.busy_note([quiet, busy, quiet]))
        # As files of earlier versions have it.
        self.assertIn("took 40% of its processors' time. Times", manifest.busy_note([{"other_cpu_share": 0.4}]))

    def test_what_is_written_has_the_contention_until_then(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out")
            for share in (0.1, 0.4):
                file = result_file.ResultFile(path, "tasks", {}, RESULTS)
                seen = types.SimpleNamespace(to_json=lambda share=share: {"other_cpu_share": share})
                file.begin({"commit": "x"}, seen)
                file.write()
            self.assertEqual([each["other_cpu_share"] for each in file.contentions()], [0.1, 0.4])
            # One that only shows what is there ran beside nothing.
            shown = result_file.ResultFile(path, "tasks", {}, RESULTS)
            shown.begin({"commit": "y"}, None)
            self.assertEqual(len(shown.contentions()), 2)


class ManifestTest(unittest.TestCase):
    def make(self, inspected):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cairn")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n[ \"$*\" = 'model inspect --json a/m.gguf' ] || exit 1\n{inspected}\n")
            os.chmod(path, 0o700)
            bench = types.SimpleNamespace(
                bin_dir=folder, model=types.SimpleNamespace(kv_token_bytes=2560),
                options=types.SimpleNamespace(model="a/m.gguf", profile="emmc"))
            return manifest.manifest(bench, [1, 2], {})

    def test_it_names_model_processor_flash_and_how_fast_memory_is_read(self):
        made = self.make("""echo '{"read_bandwidth": {"bytes_per_second": 21500000000, "threads": 2, "more": 1}}'""")
        self.assertEqual(made["model"], {"name": "m.gguf", "kv_token_bytes": 2560})
        self.assertEqual((made["profile"], made["seeds"]), ("emmc", [1, 2]))
        self.assertEqual(made["read_bandwidth"], {"bytes_per_second": 21_500_000_000, "threads": 2})
        for name in ("commit", "start_time", "command_line", "machine", "cpu", "kernel", "packages"):
            self.assertTrue(made[name], name)

    def test_what_cannot_be_measured_is_not_there(self):
        self.assertIsNone(self.make("echo {}")["read_bandwidth"])
        self.assertIsNone(self.make("exit 1")["read_bandwidth"])

    def test_changed_files_are_seen(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(manifest, "REPOSITORY", folder):
            self.assertEqual(manifest.commit(), "unknown")
            for command in (["init", "-q"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q",
                                             "--allow-empty", "-m", "x"]):
                subprocess.run(["git", "-C", folder, *command], check=True)
            self.assertRegex(manifest.commit(), r"^[0-9a-f]{40}$")
            with open(os.path.join(folder, "new"), "w", encoding="utf-8"):
                pass
            self.assertRegex(manifest.commit(), r"^[0-9a-f]{40}\+$")


if __name__ == "__main__":
    unittest.main()
