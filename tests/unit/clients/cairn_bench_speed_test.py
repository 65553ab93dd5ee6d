"""What `cairn-bench speed` and `compare` make of measurements, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_speed_test.py
"""
import contextlib
import io
import json
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import (compare_command, kv_stats, main, plots, result_file, results, speed,  # noqa: E402
                         speed_command, table)
from cairn_bench.options import CommandError  # noqa: E402

KEYS = [(4096, "full"), (4096, "dynakv")]
PEERS = [(4096, "peer --fa on"), (4096, "peer --fa off")]


def figures(rate, **others):
    return {**dict.fromkeys(speed.FIGURES), "decode_tokens_per_second": rate, "milliseconds_per_token": 1000 / rate,
            **others}


def counters(**changes):
    names = {*kv_stats.ENTRY_COUNTERS, *kv_stats.INDEX_COUNTERS, *kv_stats.READ_REQUEST_COUNTERS,
             *kv_stats.WRITE_COUNTERS, *kv_stats.FETCHED_COUNTERS, *kv_stats.ROW_COUNTERS}
    return {**dict.fromkeys(names, 7), **{name: 7 + value for name, value in changes.items()}}


class IoFiguresTest(unittest.TestCase):
    def test_reads_ahead_are_reads_and_hits_are_a_share_of_what_was_fetched(self):
        after = counters(read_fetch_bytes=8000, staged_bytes=4000, prefetched_bytes=2000, read_fetch_count=5,
                         prefetch_read_count=2, write_pool_bytes=100, write_meta_log_bytes=20, cache_hit_bytes=3000,
                         cache_miss_bytes=5000, prefetch_used_bytes=4000, read_index_bytes=600)
        said = kv_stats.io_figures(counters(), after, 10, 500)
        self.assertEqual(said, {
            "read_bytes_per_token": 1460, "read_index_bytes_per_token": 60,
            "staged_bytes_per_token": 600, "staged_used_bytes_per_token": 400,
            "fetched_bytes_per_token": 1200, "write_bytes_per_token": 12, "reads_per_token": 0.7,
            "read_mean_bytes": 2000, "read_mean_entries": 4, "cache_hit_rate": 0.25})
        self.assertEqual(kv_stats.read_bytes(counters(), after), 14600)

    def test_a_resumed_conversation_reads_its_index_and_rows_too(self):
        after = counters(read_fetch_bytes=100, read_index_bytes=30, staged_bytes=20, read_meta_bytes=50)
        self.assertEqual(kv_stats.resume_figures(counters(), after, 1000),
                         {"resume_read_bytes": 150, "resume_row_bytes": 50, "resume_read_share": 0.2})

    def test_nothing_read_has_no_mean_and_no_rate(self):
        said = kv_stats.io_figures(counters(), counters(), 10, 500)
        self.assertEqual((said["read_bytes_per_token"], said["read_mean_bytes"], said["cache_hit_rate"]),
                         (0, None, None))


class SpeedResultsTest(unittest.TestCase):
    def make(self):
        made = speed.SpeedResults(KEYS, PEERS)
        for number, rate in enumerate((10, 30, 20)):
            made.add(KEYS[0], number, figures(rate, cache_hit_rate=0.5 if number else None))
        made.add(PEERS[0], 0, {"decode_tokens_per_second": 4})
        made.add(PEERS[1], 0, {"decode_tokens_per_second": 5})
        return made

    def test_rounds_become_medians(self):
        full, dynakv = self.make().to_json()["runs"]
        self.assertEqual((full["decode_tokens_per_second"], full["milliseconds_per_token"]), (20, 50))
        self.assertEqual(full["cache_hit_rate"], 0.5)
        self.assertIsNone(dynakv["decode_tokens_per_second"])

    def test_a_run_goes_on_with_the_rounds_that_are_there(self):
        made = self.make()
        made.runs[KEYS[0]]["prefill"] = {"prefill_seconds": 1}
        again = speed.SpeedResults(KEYS, PEERS)
        again.load(json.loads(json.dumps(made.to_json())))
        self.assertEqual(again.to_json(), made.to_json())
        self.assertTrue(again.has(KEYS[0], 2))
        self.assertFalse(again.has(KEYS[0], 3))
        self.assertFalse(again.has(KEYS[1], 0))
        self.assertTrue(again.has(PEERS[1], 0))

    def test_the_best_setting_of_the_other_engine_counts(self):
        peers = self.make().to_json()["peers"]
        self.assertEqual(speed.best_peer(peers, 4096)["peer"], "peer --fa off")
        self.assertIsNone(speed.best_peer(peers, 128))

    def test_tables_have_a_row_for_each_policy(self):
        said = table.speed_table(self.make().to_json()).splitlines()
        self.assertEqual(said[1].split()[:4], ["full", "4096", "20.0", "50.00"])
        self.assertEqual(said[2].split()[:4], ["dynakv", "4096", "-", "-"])
        self.assertEqual(said[3], "peer --fa off at 4096: 5.00 tokens/s, the best of 2 settings")

    def test_random_tokens_repeat_and_are_no_special_ones(self):
        some = speed_command.random_tokens(100, 1024, 1)
        self.assertEqual(some, speed_command.random_tokens(100, 1024, 1))
        self.assertNotEqual(some, speed_command.random_tokens(100, 1024, 2))
        self.assertTrue(all(speed_command.FIRST_TOKEN <= token < 1024 for token in some))
        self.assertTrue(all(0 <= token < 10 for token in speed_command.random_tokens(100, 10, 1)))


def duration(seconds, nanos=0):
    return types.SimpleNamespace(seconds=seconds, nanos=nanos)


def finished(first_s, decode_s, io_s=0, exposed_s=0):
    return types.SimpleNamespace(
        decode_time=duration(decode_s), generated_token_count=5, first_token_time=duration(first_s, 500_000_000),
        open_time=duration(0, 400_000_000), index_time=duration(0, 300_000_000), io_time=duration(io_s),
        exposed_io_time=duration(exposed_s), kv_dram_peak_bytes=9, io_engine="memory")


class FinishedTest(unittest.TestCase):
    def test_the_first_token_is_told_in_steps_beside_the_index(self):
        said = speed_command.figures_of(finished(1, 0), finished(2, 2))
        self.assertEqual((said["resume_open_seconds"], said["resume_index_seconds"]), (0.4, 0.3))
        self.assertAlmostEqual(said["resume_steps"], (1.5 - 0.3) / 0.5)

    def test_what_was_not_waited_for_is_hidden(self):
        said = speed_command.figures_of(finished(1, 0), finished(2, 2, 20, 5))
        self.assertEqual((said["io_milliseconds_per_token"], said["exposed_io_milliseconds_per_token"]), (4000, 1000))
        self.assertEqual(said["hidden_io_share"], 0.75)
        self.assertIsNone(speed_command.figures_of(finished(1, 0), finished(2, 2))["hidden_io_share"])

    def test_time_between_tokens_is_that_of_one_token_fewer(self):
        said = speed_command.figures_of(finished(1, 0), finished(2, 2))
        self.assertEqual((said["decode_tokens_per_second"], said["milliseconds_per_token"]), (2, 500))
        self.assertEqual((said["resume_first_token_seconds"], said["first_token_seconds"]), (1.5, 2.5))
        self.assertIsNone(speed_command.figures_of(finished(1, 0), finished(2, 0))["decode_tokens_per_second"])


class PeerTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        options = types.SimpleNamespace(model="m", tokens=16, threads=3)
        bench = types.SimpleNamespace(options=options)
        self.runner = speed_command.ContextRunner(bench, None, None, 4096)

    def program(self, text):
        path = os.path.join(self.folder, "peer")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o700)
        return path

    def test_it_is_told_what_to_measure(self):
        path = self.program('[ "$*" = "m --depths 4096 --steps 16 --threads 3 --fa off" ] || exit 1\n'
                            "echo depth=4096 decode_tokens_per_s=12.50 prefill_tokens_per_s=3.0\n")
        said = self.runner._measure_peer(path + " --fa off")  # pylint: disable=protected-access
        self.assertEqual(said, {"decode_tokens_per_second": 12.5})

    def test_one_that_fails_or_says_nothing_ends_the_run(self):
        for text in ("echo no such model >&2; exit 1\n", "echo decode_tokens_per_s=1; exit 2\n", "echo hello\n"):
            with self.assertRaisesRegex(CommandError, "--peer: .*ended with status"):
                self.runner._measure_peer(self.program(text) + " --fa on")  # pylint: disable=protected-access
        with self.assertRaisesRegex(CommandError, "--peer: .*No such file"):
            self.runner._measure_peer("/absent --fa on")  # pylint: disable=protected-access


class ComparisonTest(unittest.TestCase):
    QUESTIONS = [{"document": 0, "question": number, "task": task, "token_count": 1000, "length": 1024,
                  "correct": number != 1, "score": int(number != 1), "said": ""}
                 for number, task in enumerate(("t", "t", "multivalue4"))]

    def results(self):
        measured, answers = speed.SpeedResults(KEYS, PEERS), results.TaskResults([("full", 1), ("dynakv", 1)])
        measured.add(KEYS[0], 0, figures(10))
        measured.add(KEYS[1], 0, figures(25))
        measured.add(PEERS[0], 0, {"decode_tokens_per_second": 5})
        for key in answers.runs:
            answers.runs[key]["questions"] = list(self.QUESTIONS)
        return compare_command.CompareResults(measured, answers)

    def test_speed_and_answers_stand_beside_each_other(self):
        full, dynakv = self.results().to_json()["comparison"]
        self.assertEqual((full["speed_to_full"], full["speed_to_peer"]), (1, 2))
        self.assertEqual((dynakv["speed_to_full"], dynakv["speed_to_peer"]), (2.5, 5))
        self.assertEqual((dynakv["right"], dynakv["asked"], dynakv["accuracy"]), (1, 2, 0.5))
        said = table.compare_table([full, dynakv], self.results().to_json()["speed"]).splitlines()
        self.assertEqual(said[2].split()[:6], ["dynakv", "4096", "1/2", "50.0%", "2.50x", "25.0"])

    def test_a_comparison_without_results_has_a_table(self):
        empty = compare_command.CompareResults(speed.SpeedResults(KEYS, PEERS), results.TaskResults([("full", 1)]))
        value = empty.to_json()
        self.assertIn("dynakv", table.compare_table(value["comparison"], value["speed"]))

    def test_it_is_gone_on_with_and_a_file_of_speed_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out")
            made = result_file.ResultFile(path, "compare", {"model": "m"}, self.results())
            made.write()
            again = compare_command.CompareResults(speed.SpeedResults(KEYS, PEERS),
                                                   results.TaskResults([("full", 1), ("dynakv", 1)]))
            result_file.ResultFile(path, "compare", {"model": "m"}, again)
            self.assertTrue(again.speed.has(KEYS[1], 0))
            with self.assertRaisesRegex(result_file.ResultsError, "results of `compare` in format 1, not of `speed`"):
                result_file.ResultFile(path, "speed", {"model": "m"}, again.speed)

    def test_bars_are_in_the_order_of_the_policies(self):
        rows = self.results().to_json()["comparison"]
        self.assertEqual(plots.bar_values(rows, 4096, ["dynakv", "full", "other"], "decode_tokens_per_second", 5),
                         [5, 2, 0])

    def test_a_context_without_room_for_a_round_is_refused_before_it_is_stored(self):
        bench = types.SimpleNamespace(options=types.SimpleNamespace(context=[128, 4000], tokens=64),
                                      model=types.SimpleNamespace(context_tokens=4085))
        speed_command.check_room(bench)
        bench.model.context_tokens -= 1
        with self.assertRaisesRegex(CommandError, "--context 4000 leaves no room: a round adds 85 tokens, .* 4084"):
            speed_command.run_speed(bench, None, None)

    def test_plots_without_matplotlib_are_refused_before_anything_runs(self):
        with unittest.mock.patch.dict(sys.modules, {"matplotlib": None}):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(main.main(["compare", "--json", "/absent/out.json", "--build", "/absent"]), 1)
        self.assertIn("plots need Debian's python3-matplotlib", said.getvalue())


if __name__ == "__main__":
    unittest.main()
