"""What cairn-bench makes of its command line, of daemons that end and of interrupts, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_command_test.py
"""
import argparse
import contextlib
import fractions
import io
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
from cairn_bench import bench, child, folders, interrupts, main, speed_command, tasks_command  # noqa: E402
from cairn_bench.daemons import Daemon, DaemonError, MemoryPeak  # noqa: E402  pylint: disable=wrong-import-position
from cairn_bench.options import CommandError, check  # noqa: E402  pylint: disable=wrong-import-position


class OptionsTest(unittest.TestCase):
    def parse(self, *arguments):
        parser = argparse.ArgumentParser()
        tasks_command.add_parser(parser.add_subparsers())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                return parser.parse_args(["tasks", "--model", "m", "--tasks", "t", *arguments])
            except SystemExit:
                return said.getvalue()

    def test_daemons_are_told_where_stores_lie_from_any_folder(self):
        self.assertEqual(self.parse("--store-dir", "stores").store_dir, os.path.abspath("stores"))
        self.assertIsNone(self.parse().store_dir)

    def test_lists_shares_and_budgets_are_read(self):
        options = self.parse("--policy", "full,no-cluster", "--seed", "1,22", "--select", "2.5%", "--dram-budget",
                             "1/13", "--out", "o")
        self.assertEqual((options.policy, options.seed, options.select), (["full", "no-cluster"], [1, 22], 2.5))
        self.assertEqual((options.dram_budget, options.json), (fractions.Fraction(1, 13), "o"))
        self.assertEqual(self.parse("--select", "3").select, 3)
        self.assertEqual((self.parse().estimate, self.parse("--estimate", "25%").estimate), (0, 25))
        self.assertEqual(self.parse().policy, ["full", "dynakv"])

    def test_what_is_out_of_range_is_refused(self):
        for name, value in (("--select", "0%"), ("--select", "101"), ("--policy", "full,"), ("--seed", "0"),
                            ("--dram-budget", "13/1"), ("--dram-budget", "0"), ("--parallel", "17"),
                            ("--lengths", "1024,"), ("--estimate", "101%"), ("--profile", "floppy"),
                            ("--kv-format", "q2"), ("--prefill", "2147483648"), ("--select-max", "9999999999"),
                            ("--cluster-entries", "9999999999"), ("--lengths", "9999999999")):
            self.assertIn(f"argument {name}", self.parse(name, value))
        self.assertEqual(self.parse("--seed", "9223372036854775807").seed, [(1 << 63) - 1])

    def test_a_folder_for_traces_must_be_there(self):
        parser = argparse.ArgumentParser()
        speed_command.add_parser(parser.add_subparsers())
        options = parser.parse_args(["speed", "--model", "m", "--context", "9", "--trace", "/absent/t.json"])
        with self.assertRaisesRegex(CommandError, "no such folder"):
            check(options)
        options.trace = "t.json"
        check(options)

    def test_a_share_of_the_cache_becomes_bytes(self):
        self.assertEqual(bench.budget_bytes(fractions.Fraction(1, 13), 13 << 22), 4 << 20)
        self.assertEqual(bench.budget_bytes(fractions.Fraction(1, 1000), 13 << 22), bench.DRAM_BUDGET_BYTES_MIN)
        self.assertEqual(bench.budget_bytes(fractions.Fraction(5), 13 << 22), 5)

    def test_daemons_share_the_budget(self):
        made = bench.Bench.__new__(bench.Bench)
        made.options = self.parse("--dram-budget", "4/13", "--parallel", "9")
        made.model = bench.Model(13 << 10, 1 << 9, 1 << 15, 5, 128)
        kv, compute = made.settings(4096)
        self.assertEqual((compute["dram_budget_bytes"], kv["arena_bytes_max"]), (16 << 20, 1 << 20))
        self.assertEqual(compute["generation_count_max"], 9)
        kv, compute = made.settings(4096, batch=10)
        self.assertEqual((compute["dram_budget_bytes"], kv["arena_bytes_max"]), ((16 << 20) // 10, 1 << 20))
        self.assertEqual(compute["generation_count_max"], 10)
        made.options = self.parse()
        kv, compute = made.settings(4096)
        self.assertNotIn("dram_budget_bytes", compute)
        self.assertNotIn("chat_template", compute)
        self.assertNotIn("arena_bytes_max", kv)
        for given, template in ((["--chat", "chatml"], "chatml"), (["--chat"], None)):
            made.options = self.parse(*given)
            self.assertEqual(made.settings(4096)[1].get("chat_template"), template)

    def test_a_missing_program_and_lists_that_make_no_sense_are_named(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            data = os.path.join(REPOSITORY, "tests", "data", "tasks-dev-4k.jsonl")
            arguments = ["tasks", "--model", "m", "--tasks", data, "--build", "/absent"]
            self.assertEqual(main.main(arguments), 1)
            self.assertEqual(main.main([*arguments, "--select-max", "100"]), 2)
            self.assertEqual(main.main([*arguments, "--policy", "full,full"]), 2)
        self.assertIn("no program /absent/bin/cairn: build it", said.getvalue())
        self.assertIn("--select-max 100 is less than --select-min 192", said.getvalue())
        self.assertIn("--policy has 2 values: give each once", said.getvalue())


class DaemonTest(unittest.TestCase):
    def test_a_daemon_that_does_not_start_says_why(self):
        with self.assertRaisesRegex(DaemonError, "sh ended with status 3:\nno room"):
            Daemon(["sh", "-c", "echo no room >&2; exit 3"])

    def test_the_end_of_a_daemon_is_told(self):
        ended = threading.Event()
        daemon = Daemon(["sh", "-c", "echo x: ready 1 >&2; kill -9 $$"], on_end=ended.set)
        self.assertTrue(ended.wait(60))
        self.assertIn("sh was ended by signal 9:\nx: ready 1", daemon.why_ended())
        daemon.stop()

    def test_memory_is_measured_however_soon_it_is_over(self):
        with unittest.mock.patch("cairn_bench.daemons.MEMORY_SAMPLE_S", 60), \
                unittest.mock.patch("cairn_bench.daemons.memory_bytes", return_value=7):
            peak = MemoryPeak([1])
            peak.close()
        self.assertEqual((peak.total, peak.peaks), (7, [7]))

    def test_memory_is_sampled_until_a_daemon_ends(self):
        with unittest.mock.patch("cairn_bench.daemons.MEMORY_SAMPLE_S", 0), \
                unittest.mock.patch("cairn_bench.daemons.memory_bytes", side_effect=[7, ProcessLookupError()]):
            peak = MemoryPeak([1])
            peak.thread.join()
        self.assertEqual(peak.total, 7)


class FakePair:
    """Daemons of which the KV node has ended, or none has."""
    socket = kv_socket = "nowhere"

    def __init__(self, ended):
        self.ended = ended

    def check(self, _):
        if self.ended:
            raise DaemonError("cairn-kv-node was ended by signal 9")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class RunningTest(unittest.TestCase):
    def fail_with(self, error, ended):
        made = bench.Bench.__new__(bench.Bench)
        made.bin_dir, made.options = "bin", types.SimpleNamespace(model="m", store_dir=None)
        made.settings = lambda *_: ({}, {})
        closing = lambda _: types.SimpleNamespace(close=lambda: None)  # noqa: E731
        with unittest.mock.patch.multiple(bench, DaemonPair=lambda *_, **__: FakePair(ended), Client=closing,
                                          KvNode=closing):
            with made.running(0, lambda: "document 0"):
                raise error

    def test_whatever_breaks_off_when_a_daemon_ends_becomes_its_end(self):
        for error in (ValueError("closed"), ConnectionResetError(104, "reset")):
            with self.assertRaisesRegex(DaemonError, "ended by signal 9"):
                self.fail_with(error, ended=True)
            with self.assertRaises(type(error)):
                self.fail_with(error, ended=False)


class InterruptsTest(unittest.TestCase):
    def setUp(self):
        self.enterContext(unittest.mock.patch.dict(interrupts._state, {"requested": False, "holders": []}))

    def test_daemons_end_instead_of_an_exception_while_there_are_some(self):
        some = [unittest.mock.Mock(), unittest.mock.Mock()]
        for daemon in some:
            interrupts.started(daemon)
        interrupts.check()
        interrupts.ended(some[0])
        interrupts._handle()
        self.assertTrue(interrupts.requested())
        some[0].terminate.assert_not_called()
        some[1].terminate.assert_called_once()
        with self.assertRaises(KeyboardInterrupt):
            interrupts.check()

    def test_without_daemons_it_is_raised_at_once(self):
        with self.assertRaises(KeyboardInterrupt):
            interrupts._handle()

    def test_a_folder_is_removed_whenever_it_comes(self):
        make, remove = tempfile.mkdtemp, os.rmdir
        with tempfile.TemporaryDirectory() as parent:
            for name, do in (("tempfile.mkdtemp", make), ("os.rmdir", remove)):
                def interrupted(*arguments, do=do, **more):
                    done = do(*arguments, **more)
                    interrupts._handle()
                    return done
                with self.subTest(name), unittest.mock.patch.dict(
                        interrupts._state, {"requested": False, "holders": []}):
                    with self.assertRaises(KeyboardInterrupt), unittest.mock.patch(name, side_effect=interrupted):
                        with folders.temporary_folder("test-", parent) as folder:
                            self.assertTrue(os.path.isdir(folder))
                    self.assertEqual(os.listdir(parent), [])
                    self.assertEqual(interrupts._state["holders"], [])

    def test_what_a_program_started_ends_with_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        interrupts.install()
        # The sleep holds the pipe that is read from.
        script = f"sleep 1000 & kill -INT {os.getpid()}; wait"
        with self.assertRaises(KeyboardInterrupt):
            child.run_program(["sh", "-c", script], timeout=60)

    def test_what_fails_behind_an_interrupt_is_no_news(self):
        def run(_):
            interrupts._state["requested"] = True
            raise ValueError("Cannot invoke RPC on closed channel!")
        options = types.SimpleNamespace(run=run)
        with unittest.mock.patch.object(argparse.ArgumentParser, "parse_args", return_value=options), \
                unittest.mock.patch.object(interrupts, "install"), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main.main([]), 130)
        self.assertIn("interrupted", said.getvalue())


if __name__ == "__main__":
    unittest.main()
