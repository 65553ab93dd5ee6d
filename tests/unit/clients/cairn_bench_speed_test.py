"""What `cairn-bench speed` and `compare` make of measurements, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_speed_test.py
"""
import argparse
import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import (bench, closeness, compare_command, interrupts, kv_stats, main, plots,  # noqa: E402
                         result_file, results, speed, speed_command, table, tasks, tasks_command)
from cairn_bench.options import CommandError  # noqa: E402

KEYS = [(4096, "full"), (4096, "dynakv")]
PEERS = [(4096, "peer --fa on"), (4096, "peer --fa off")]
# As `cairn model inspect --json` describes a model that runs, and as `cairn model tokenize` prints 20 tokens.
CAIRN = """#!/bin/sh
[ "$2" = tokenize ] && cat > /dev/null && exec echo 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
echo '{"runs": true, "kv_bytes_token": {"f16": 64}, "heads": {"kv": 2, "dim": 64}, "layers": 2, "context": 8192}'
"""
# Keeps what it is told, and answers with what lies beside it.
POLICY_EVAL = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/told"
while [ $# -gt 1 ]; do shift; done
cp "$(dirname "$0")/figures" "$1"
"""


def figures(rate, **others):
    return {**dict.fromkeys(speed.FIGURES), "decode_tokens_per_second": rate, "milliseconds_per_token": 1000 / rate,
            **others}


MODEL = bench.Model(kv_token_bytes=4000, kv_entry_bytes=500, context_tokens=4096, layer_count=2, joint_key_dim=256)


def counters(**changes):
    names = {*kv_stats.READ_COUNTERS, *kv_stats.WRITE_CAUSES, *kv_stats.FETCHED_COUNTERS, "read_fetch_count",
             "read_meta_bytes"}
    return {**dict.fromkeys(names, 7), **{name: 7 + value for name, value in changes.items()}}


class BatchTest(unittest.TestCase):
    def test_all_together_have_one_rate_and_the_kv_node_once(self):
        each = {"decode_tokens_per_second": 10.0, "milliseconds_per_token": 100.0, "hidden_io_share": None,
                "kv_dram_accounted_bytes": 107, "io_engine": "io_uring"}
        other = {**each, "decode_tokens_per_second": 30.0, "milliseconds_per_token": 50.0, "hidden_io_share": 0.5,
                 "kv_dram_accounted_bytes": 109}
        self.assertEqual(speed_command.together([each, other], 35.0, 100),
                         {"decode_tokens_per_second": 35.0, "milliseconds_per_token": 75.0, "hidden_io_share": 0.5,
                          "kv_dram_accounted_bytes": 116, "io_engine": "io_uring"})
        self.assertEqual(speed_command.together([each], 1, 100), each)


class IoFiguresTest(unittest.TestCase):
    def test_hits_are_a_share_of_what_was_fetched(self):
        after = counters(read_fetch_bytes=14000, read_fetch_count=7,
                         write_pool_bytes=100, write_split_bytes=40, write_meta_log_bytes=20,
                         cache_hit_bytes=3000, cache_miss_bytes=9000, read_index_bytes=600)
        said = kv_stats.io_figures(counters(), after, 10, MODEL, 0.001)
        of_causes = {f"{name}_per_token": 0 for name in kv_stats.WRITE_CAUSES}
        self.assertEqual(said, {
            **of_causes, "write_pool_bytes_per_token": 10, "write_split_bytes_per_token": 4,
            "write_meta_log_bytes_per_token": 2,
            "write_amplification": 0.003,
            "read_bytes_per_token": 1460, "read_index_bytes_per_token": 60,
            "fetched_bytes_per_token": 1200, "write_bytes_per_token": 12, "reads_per_token": 0.7,
            "read_mean_bytes": 2000,
            # 9,000 of the 14,000 bytes are of entries that were asked for.
            "read_mean_entries": 18 / 7, "effective_read_bytes_per_second": 900000, "cache_hit_rate": 0.25})
        self.assertEqual(kv_stats.read_bytes(counters(), after), 14600)

    def test_a_resumed_conversation_reads_its_index_and_rows_too(self):
        after = counters(read_fetch_bytes=120, read_index_bytes=30, read_meta_bytes=50)
        self.assertEqual(kv_stats.resume_figures(counters(), after, 1000),
                         {"resume_read_bytes": 150, "resume_row_bytes": 50, "resume_read_share": 0.2})

    def test_nothing_read_has_no_mean_and_no_rate(self):
        said = kv_stats.io_figures(counters(), counters(), 10, MODEL, 0.0)
        self.assertEqual([said[name] for name in ("read_bytes_per_token", "read_mean_bytes", "read_mean_entries",
                                                  "effective_read_bytes_per_second", "cache_hit_rate")],
                         [0, None, None, None, None])


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
        self.assertEqual(said[0], "decoding: medians of rounds")
        self.assertEqual(said[2].split()[:8], ["full", "4096", "20.0", "10.0", "to", "30.0", "3", "-"])
        self.assertEqual(said[3].split()[:5], ["dynakv", "4096", "-", "-", "0"])
        self.assertEqual(said[-1], "peer --fa off at 4096: 5.00 tokens/s, the best of 2 settings")

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
        with self.assertRaisesRegex(CommandError, "(?s)--peer: .*No such file"):
            self.runner._measure_peer("/absent --fa on")  # pylint: disable=protected-access


def evaluated(document, kl=0.002, size=8):
    """-> what cairn-policy-eval writes of `full` and `dynakv`."""
    def policy(name, divergence, recall, attended, index):
        return {"policy": name, "kl": {"mean": divergence, "p99": 10 * divergence}, "same_best": 1,
                "recall": {"mean": recall}, "attended": {"mean": attended}, "index": index}
    index = [{"clusters": 5, "mean_size": 1, "variance": 1}, {"clusters": 9, "mean_size": size, "variance": 30}]
    return {"configuration": {"document": document, "token_count": 20, "prefill": 8},
            "policies": [policy("full", 0, 1, 1000, []), policy("dynakv", kl, 0.9, 192, index)]}


class ClosenessTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        os.mkdir(os.path.join(self.folder, "bin"))
        self.write("cairn", CAIRN)
        self.write("cairn-policy-eval", POLICY_EVAL)
        self.write("figures", json.dumps(evaluated(7)))
        self.results = closeness.ClosenessResults(["full", "dynakv"])
        self.documents = [tasks.Document(number, "", 21, "é", ()) for number in (7, 8)]

    def write(self, name, text):
        path = os.path.join(self.folder, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o700)

    def told(self):
        with open(os.path.join(self.folder, "bin", "told"), encoding="utf-8") as file:
            return file.read().splitlines()

    @staticmethod
    def options(*arguments):
        parser = argparse.ArgumentParser()
        compare_command.add_parser(parser.add_subparsers())
        return parser.parse_args(["compare", "--model", "m", "--tasks", "t", "--policies", "full,dynakv",
                                  "--closeness-tokens", "12", *arguments])

    def run_closeness(self, *arguments, documents=slice(1)):
        made = bench.Bench.__new__(bench.Bench)
        made.options, made.bin_dir = self.options(*arguments), os.path.join(self.folder, "bin")
        file = types.SimpleNamespace(write=unittest.mock.Mock())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            closeness.run_closeness(made, self.documents[documents], self.results, file)
        return said.getvalue(), file.write.call_count

    def test_the_program_is_told_what_the_daemons_are_and_to_feed_the_last_tokens(self):
        said, writes = self.run_closeness("--select", "5%", "--estimate", "25%", "--no-select-ahead", "--seed", "3,4",
                                          "--kv-format", "q8", "--cluster-entries", "16", "--threads", "1000")
        told, path = self.told()[0].rsplit(" ", 1)
        self.assertEqual(told, "--model m --policy full,dynakv --tasks t --document 7 --prefill 8 --select 5.0% "
                         "--select-min 192 --select-max 1024 --cluster-entries 16 --estimate 25.0% --no-select-ahead "
                         "--kv-format q8 --seed 3 --threads 256 --json")
        self.assertFalse(os.path.exists(os.path.dirname(path)))
        self.assertIn("[1/1] document 7: the last 12 of 20 tokens", said)
        self.assertEqual(writes, 1)
        full, dynakv = self.results.documents[0]["policies"]
        self.assertEqual((full["recall"], full["cluster_count"]), (1, None))
        self.assertEqual((dynakv["cluster_count"], dynakv["cluster_mean_size"], dynakv["cluster_variance"]), (9, 8, 30))

    def test_a_short_document_keeps_a_token_in_front(self):
        self.run_closeness("--closeness-tokens", "20")
        self.assertIn("--document 7 --prefill 1 ", self.told()[0])

    def test_a_policy_that_has_made_no_clusters_has_no_size(self):
        value = evaluated(7)
        value["policies"][1]["index"] = [{"clusters": 0, "mean_size": 0, "variance": 0}]
        self.assertIsNone(closeness.parse(value)["policies"][1]["cluster_mean_size"])

    def test_documents_that_are_there_are_not_measured_again(self):
        self.run_closeness()
        again = closeness.ClosenessResults(["full", "dynakv"])
        again.load(json.loads(json.dumps(self.results.to_json())))
        self.results = again
        self.write("figures", json.dumps(evaluated(8)))
        _, writes = self.run_closeness(documents=slice(2))
        self.assertEqual(["--document 7 " in told for told in self.told()], [True, False])
        self.assertEqual((writes, self.run_closeness(documents=slice(2))[1]), (1, 0))
        self.assertEqual([document["document"] for document in again.documents], [7, 8])

    def test_a_program_that_fails_ends_the_run_with_its_message(self):
        for name, text, said in (
                ("cairn-policy-eval", "echo x: no room >&2; exit 1", "ended with status 1:\nx: no room"),
                ("cairn-policy-eval", "kill -9 $$", "was ended by signal 9"),
                ("cairn-policy-eval", "true", "wrote no figures that are understood .FileNotFoundError"),
                ("cairn", "echo no vocabulary >&2; exit 1", "ended with status 1:\nno vocabulary")):
            self.write(name, f"#!/bin/sh\n{text}\n")
            with self.assertRaisesRegex(CommandError, f"document 7: {name} {said}"):
                self.run_closeness()
        self.assertEqual(self.results.documents, [])

    def test_figures_of_another_form_are_refused(self):
        for text in ("", "[]", json.dumps({**evaluated(7), "policies": [{"policy": "full"}]})):
            self.write("figures", text)
            with self.assertRaisesRegex(CommandError, "wrote no figures that are understood"):
                self.run_closeness()

    def test_an_interrupt_ends_the_program(self):
        pipe, pids = os.path.join(self.folder, "pipe"), []
        os.mkfifo(pipe)
        self.write("cairn-policy-eval", f"#!/bin/sh\necho $$ > {pipe}\nexec sleep 600\n")

        def interrupt():
            with open(pipe, encoding="utf-8") as file:
                pids.append(int(file.read()))
            os.kill(os.getpid(), signal.SIGINT)

        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        with unittest.mock.patch.dict(interrupts._state):  # pylint: disable=protected-access
            interrupts.install()
            thread = threading.Thread(target=interrupt)
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                self.run_closeness()
            thread.join()
        with self.assertRaises(ProcessLookupError):
            os.kill(pids[0], 0)

    def choose(self, counts, *arguments):
        units = [tasks_command.Unit(length, key, [tasks.Document(length + number, "", length, "a", ())
                                                  for number in range(2)])
                 for length in (10, 20) for key in (("full", 1), ("dynakv", 1))]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            chosen = closeness.closeness_documents(self.options(*arguments), units, counts)
        return [document.number for document in chosen], said.getvalue()

    def test_the_longest_documents_of_the_own_form_are_taken(self):
        self.assertEqual(self.choose({}), ([20], ""))
        self.assertEqual(self.choose({}, "--closeness", "3"), ([20, 21, 10], ""))
        self.assertEqual(self.choose({20: 20, 10: 10}, "--closeness", "9"), ([21, 11], ""))
        self.assertEqual(self.choose({}, "--closeness", "0"), ([], ""))
        none, said = self.choose(dict.fromkeys((10, 11, 20, 21), 1))
        self.assertEqual(none, [])
        self.assertIn("t: no document in Cairn's own form is asked about: how near", said)

    def test_a_missing_program_is_named_before_anything_runs(self):
        os.remove(os.path.join(self.folder, "bin", "cairn-policy-eval"))
        for name in bench.DAEMONS:
            self.write(name, "#!/bin/sh\necho started >&2; exit 1\n")
        for arguments, said in (((), "no program .*/bin/cairn-policy-eval: build it"),
                                (("--closeness", "0"), "cairn-kv-node ended with status 1:\nstarted")):
            with contextlib.redirect_stderr(io.StringIO()) as heard:
                self.assertEqual(main.main(["compare", "--build", self.folder, *arguments]), 1)
            self.assertRegex(heard.getvalue(), said)

    def test_results_of_other_settings_or_of_another_program_are_refused(self):
        made = bench.Bench.__new__(bench.Bench)
        made.bin_dir, path = os.path.join(self.folder, "bin"), os.path.join(self.folder, "out")
        for name in (*bench.DAEMONS, "m"):
            self.write(name, "x")

        def file(*arguments, names=closeness.OPTION_NAMES, programs=(closeness.PROGRAM,)):
            made.options, made.digests = self.options("--model", os.path.join(made.bin_dir, "m"), *arguments), {}
            return result_file.ResultFile(path, "compare", made.configuration(*names, programs=programs), self.results)

        file(names=(), programs=()).write()
        with self.assertRaisesRegex(result_file.ResultsError, "closeness: None there, 1 here"):
            file()
        os.remove(path)
        file().write()
        with self.assertRaisesRegex(result_file.ResultsError, "closeness: 1 there, 2 here"):
            file("--closeness", "2")
        with self.assertRaisesRegex(result_file.ResultsError, "closeness_tokens: 12 there, 13 here"):
            file("--closeness-tokens", "13")
        self.write("cairn-policy-eval", "another")
        with self.assertRaisesRegex(result_file.ResultsError, r"cairn-policy-eval \(SHA-256\): "):
            file()


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
        near = closeness.ClosenessResults(["full", "dynakv"])
        near.add(closeness.parse(evaluated(7)))
        near.add(closeness.parse(evaluated(8, kl=0.004, size=6)))
        return compare_command.CompareResults(measured, answers, near)

    @staticmethod
    def empty():
        return compare_command.CompareResults(
            speed.SpeedResults(KEYS, PEERS), results.TaskResults([("full", 1), ("dynakv", 1)]),
            closeness.ClosenessResults(["full", "dynakv"]))

    def test_speed_and_answers_stand_beside_each_other(self):
        full, dynakv = self.results().to_json()["comparison"]
        self.assertEqual((full["speed_to_full"], full["speed_to_peer"]), (1, 2))
        self.assertEqual((dynakv["speed_to_full"], dynakv["speed_to_peer"]), (2.5, 5))
        self.assertEqual((dynakv["right"], dynakv["asked"], dynakv["accuracy"]), (1, 2, 0.5))
        said = table.compare_table([full, dynakv], self.results().to_json()["speed"]).splitlines()
        self.assertEqual(said[2].split(), ["full", "1/2", "50.0", "0.00", "100.0%", "-", "-"])
        self.assertEqual(said[3].split(), ["dynakv", "1/2", "50.0", "3.00", "90.0%", "7.00", "30.000"])
        row = next(line for line in said[4:] if line.startswith("dynakv"))
        self.assertEqual(row.split()[:8], ["dynakv", "4096", "25.0", "25.0", "to", "25.0", "1", "2.50x"])

    def test_no_table_is_wider_than_a_page(self):
        # The longest names and figures that are likely.
        figures = {"hidden_io_share": 1.0, "cache_hit_rate": 1.0, "resume_read_share": 1.234, "speed_to_full": 12.34,
                   "decode_tokens_per_second": 123.4, "rounds": [{"decode_tokens_per_second": 123.4}],
                   "io_milliseconds_per_token": 1234.56, "exposed_io_milliseconds_per_token": 1234.56,
                   "first_token_seconds": 12.345, "resume_first_token_seconds": 12.345, "right": 1234.5,
                   "asked": 12345, "accuracy": 1.0, "kl_mean": 1.23456, "recall": 1.0, "cluster_mean_size": 40.12,
                   "cluster_variance": 1234.567}
        runs = [{**dict.fromkeys(speed.FIGURES, 123456.5), **figures, "context": 131072, "policy": policy}
                for policy in ("full", "local-cluster-40")]
        for said in (table.speed_table({"runs": runs, "peers": []}),
                     table.compare_table(runs, {"runs": runs, "peers": []})):
            self.assertLessEqual(max(map(len, said.splitlines())), 100, said)

    def test_documents_are_averaged_but_for_the_tail(self):
        full, dynakv = self.results().to_json()["comparison"]
        self.assertAlmostEqual(dynakv["kl_mean"], 0.003)
        self.assertEqual((dynakv["kl_p99"], dynakv["recall"], dynakv["cluster_mean_size"]), (0.04, 0.9, 7))
        self.assertEqual((full["attended_tokens"], full["same_best"], full["cluster_variance"]), (1000, 1, None))

    def test_a_comparison_without_results_has_a_table(self):
        value = self.empty().to_json()
        self.assertIsNone(value["comparison"][0]["recall"])
        self.assertIn("dynakv", table.compare_table(value["comparison"], value["speed"]))

    def test_it_is_gone_on_with_and_a_file_of_speed_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out")
            made = result_file.ResultFile(path, "compare", {"model": "m"}, self.results())
            made.write()
            again = self.empty()
            result_file.ResultFile(path, "compare", {"model": "m"}, again)
            self.assertTrue(again.speed.has(KEYS[1], 0))
            self.assertEqual(again.to_json(), self.results().to_json())
            with self.assertRaisesRegex(result_file.ResultsError, "results of `compare` in format 2, not of `speed`"):
                result_file.ResultFile(path, "speed", {"model": "m"}, again.speed)

    def test_bars_are_in_the_order_of_the_policies(self):
        rows = self.results().to_json()["comparison"]
        self.assertEqual(plots.bar_values(rows, 4096, ["dynakv", "full", "other"], "decode_tokens_per_second", 5),
                         [5, 2, 0])

    def test_bars_have_errors_and_say_of_how_many_they_are(self):
        rows = self.results().to_json()["comparison"]
        rows[0].update({"right": 9, "asked": 10, "accuracy": 0.9, "round_count": 3,
                        "ranges": {"decode_tokens_per_second": [8, 11], "read_bytes_per_token": None}})
        below, above = plots.bar_errors(rows, 4096, ["full", "other"], "decode_tokens_per_second", 2)
        self.assertEqual((below, above), ([1, 0], [0.5, 0]))
        self.assertEqual(plots.bar_errors(rows, 4096, ["full"], "read_bytes_per_token", 1), [[0], [0]])
        (below,), (above,) = plots.bar_errors(rows, 4096, ["full"], "accuracy", 1 / 100)
        self.assertAlmostEqual(90 - below, 59.6, places=1)
        self.assertAlmostEqual(90 + above, 98.2, places=1)
        self.assertEqual(plots.counted(rows, "accuracy"), "n = 2 to 10 questions, 95 % interval")
        self.assertEqual(plots.counted(rows[:1], "read_bytes_per_token"), "median and range of n = 3 rounds")

    def test_a_share_of_everything_has_an_interval_too(self):
        low, high = plots.share_interval(69, 69)
        self.assertTrue(0.94 < low < 0.96, low)
        self.assertEqual(high, 1)
        self.assertAlmostEqual(plots.share_interval(0, 69)[0], 0)

    def test_a_context_without_room_for_a_round_is_refused_before_it_is_stored(self):
        bench = types.SimpleNamespace(options=types.SimpleNamespace(context=[128, 4000], tokens=64),
                                      model=types.SimpleNamespace(context_tokens=4085))
        speed_command.check_room(bench)
        bench.model.context_tokens -= 1
        with self.assertRaisesRegex(CommandError, "--context 4000 leaves no room: a round adds 85 tokens, .* 4084"):
            speed_command.run_speed(bench, None, None)

    def test_a_text_is_read_once_and_must_be_long_enough(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="utf-8") as file:
                file.write("some text")
            bench = types.SimpleNamespace(options=types.SimpleNamespace(context=[2, 3], text=path, batch=1),
                                          token_ids=lambda what, text: list(range(len(text) - 6)))
            self.assertEqual(speed_command.text_tokens(bench), [0, 1, 2])
            bench.options.context = [4]
            with self.assertRaisesRegex(CommandError, "text has 3 tokens, and --context asks for 4"):
                speed_command.text_tokens(bench)
            bench.options.text = os.path.join(folder, "absent")
            with self.assertRaisesRegex(CommandError, "cannot read .*absent: No such file"):
                speed_command.text_tokens(bench)
            bench.options.text = None
            self.assertIsNone(speed_command.text_tokens(bench))

    def test_plots_without_matplotlib_are_refused_before_anything_runs(self):
        with unittest.mock.patch.dict(sys.modules, {"matplotlib": None}):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(main.main(["compare", "--json", "/absent/out.json", "--build", "/absent"]), 1)
        self.assertIn("plots need Debian's python3-matplotlib", said.getvalue())


if __name__ == "__main__":
    unittest.main()
