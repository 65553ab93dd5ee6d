"""cairn-bench speed and compare over real daemons: what must be so on every machine, and runs that are stopped.

Nothing here depends on how fast the machine is.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/bench_compare_test.py
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import daemons
from daemons import wait_until

PROGRAM = os.path.join(daemons.REPOSITORY, "clients", "bench", "cairn-bench")
CONTEXT = 2048
# Where selections of pages are much less than everything.
COMPARED_CONTEXT = 4096
# Three times as long with others as with dynakv: a busy machine does not make up for that in so many.
COMPARED_TOKENS = 24
POLICIES = ["full", "dynakv", "no-cluster", "static-cluster", "local-cluster", "streaming"]
# What keeps no clusters of like keys: what it selects lies page by page.
PAGE_POLICIES = ["no-cluster", "static-cluster"]
PEER = "#!/bin/sh\necho depth=$3 decode_tokens_per_s=12.5 prefill_tokens_per_s=3\n"

# Started by a shell in the background, a program ignores Ctrl-C unless it is told not to.
PYTHON = ("env", "--default-signal=INT", "/usr/bin/python3")


class BenchCompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cairn-bench-test-"))
        self.temporary, self.out = self.path("tmp"), self.path("out.json")
        os.mkdir(self.temporary)

    def tearDown(self):
        self.assertEqual(os.listdir(self.temporary), [], "files that stayed behind")

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, command, *arguments):
        # A quarter of the cache: full attention cannot find everything in memory.
        return subprocess.Popen(
            [*PYTHON, PROGRAM, command, "--model", daemons.MODEL, "--context", str(CONTEXT), "--tokens", "8",
             "--dram-budget", "1/4", "--build", os.path.dirname(daemons.BIN_DIR), "--json", self.out, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": self.temporary},
            start_new_session=True)

    def finish(self, process, status=0):
        """-> what it said on stdout and on stderr."""
        said = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
        self.assertEqual(process.returncode, status, said)
        self.assertNotIn("Traceback", said[1])
        return said

    def results(self):
        with open(self.out, encoding="utf-8") as file:
            return json.load(file)

    def spans(self, name):
        """-> the names of the spans in a timeline."""
        with open(self.path(name), encoding="utf-8") as file:
            return {event["name"] for event in json.load(file) if event["ph"] == "X"}

    def rounds_done(self):
        if not os.path.exists(self.out):
            return 0
        value = self.results()
        return sum(len(run["rounds"]) for run in value.get("speed", value)["runs"])

    def test_compare_orders_policies_by_what_they_read_and_answer(self):
        said, progress = self.finish(self.start(
            "compare", "--policies", ",".join(POLICIES), "--profile", "emmc", "--rounds", "1", "--lengths", "1024",
            "--documents", "2", "--parallel", "4", "--closeness-tokens", "64", "--context", str(COMPARED_CONTEXT),
            "--tokens", str(COMPARED_TOKENS)))
        value = self.results()
        rows = {row["policy"]: row for row in value["comparison"]}
        self.assertEqual(list(rows), POLICIES)
        self.assertEqual({row["asked"] for row in rows.values()}, {29})
        self.check_order(rows)
        self.assertEqual(rows["full"]["speed_to_full"], 1)
        for row in rows.values():
            for name in ("decode_tokens_per_second", "first_token_seconds", "resume_first_token_seconds",
                         "resume_open_seconds", "resume_steps", "resume_row_bytes", "reads_per_token",
                         "read_mean_entries", "kv_dram_bytes", "kv_flash_bytes"):
                self.assertGreater(row[name], 0, (row["policy"], name))
            self.assertGreater(row["io_milliseconds_per_token"], row["exposed_io_milliseconds_per_token"])
            self.assertTrue(0 < row["hidden_io_share"] < 1, row)
            self.assertGreaterEqual(row["resume_first_token_seconds"], row["resume_open_seconds"])
            self.assertGreaterEqual(row["resume_open_seconds"], row["resume_index_seconds"])
            if row["policy"] in ("full", "dynakv", "streaming"):
                self.assertEqual(row["resume_index_seconds"] > 0, row["policy"] == "dynakv")
            self.assertIn(row["policy"], said)
        self.check_closeness(rows, value["closeness"]["documents"])
        self.assertTrue(value["speed"]["runs"][0]["rounds"][0]["io_engine"].endswith("+emmc"))
        self.assertIn("commit", value["manifest"])
        for name in ("speed", "bytes", "accuracy"):
            self.assertIn(f"out-{name}.png", progress)
            with open(self.path(f"out-{name}.png"), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")

    def check_order(self, rows):
        """Of a comparison of POLICIES on a slow device: what is read decides, and is the same on a busy machine."""
        for policy in ("full", *PAGE_POLICIES):
            more = rows[policy]["read_bytes_per_token"] / rows["dynakv"]["read_bytes_per_token"]
            self.assertGreater(more, 2, policy)
        for policy in PAGE_POLICIES:
            self.assertGreater(rows[policy]["reads_per_token"], rows["dynakv"]["reads_per_token"], policy)
        self.assertGreater(rows["full"]["read_bytes_per_token"], rows["no-cluster"]["read_bytes_per_token"])
        self.assertGreater(rows["dynakv"]["read_bytes_per_token"], rows["streaming"]["read_bytes_per_token"])
        self.assertGreaterEqual(rows["dynakv"]["right"], rows["full"]["right"] - 2)
        for policy in POLICIES[:-1]:
            self.assertGreater(rows[policy]["right"], rows["streaming"]["right"] + 5, policy)
        # Only where a policy chooses a conversation is resumed without reading all of it.
        self.assertGreater(rows["full"]["resume_read_share"], 1)
        self.assertLess(rows["dynakv"]["resume_read_share"], 0.6)

    def check_closeness(self, rows, documents):
        """Of a comparison of POLICIES: the nearer to full attention, the more of it is attended."""
        self.assertEqual([(each["document"], each["token_count"], each["prefill"]) for each in documents],
                         [(0, 1009, 1009 - 64)])
        self.assertAlmostEqual(rows["full"]["recall"], 1, places=5)
        self.assertAlmostEqual(rows["full"]["kl_mean"], 0, places=7)
        for better, worse in (("full", "dynakv"), ("dynakv", "streaming")):
            self.assertGreater(rows[better]["recall"], rows[worse]["recall"], (better, worse))
            self.assertLess(rows[better]["kl_mean"], rows[worse]["kl_mean"], (better, worse))
        # Between them all others, by what they attend; so few tokens say less about what comes of it.
        for policy in POLICIES[2:-1]:
            self.assertTrue(rows["streaming"]["recall"] < rows[policy]["recall"] < 1, (policy, rows[policy]))
        self.assertGreater(rows["full"]["attended_tokens"], 945)
        self.assertLessEqual(rows["dynakv"]["attended_tokens"], 192)
        self.assertTrue(4 < rows["dynakv"]["cluster_mean_size"] < 12, rows["dynakv"])
        self.assertGreater(rows["dynakv"]["cluster_variance"], 0)
        for policy in ("full", "streaming"):
            self.assertIsNone(rows[policy]["cluster_variance"])
        for row in rows.values():
            self.assertTrue(0 < row["same_best"] <= 1, row)
            self.assertGreaterEqual(row["kl_p99"], row["kl_mean"])

    def test_a_stopped_comparison_goes_on(self):
        arguments = ("compare", "--policies", "full,dynakv", "--rounds", "2", "--lengths", "1024", "--documents", "1",
                     "--closeness-tokens", "16", "--no-plots")
        process = self.start(*arguments)
        wait_until(self.rounds_done, "the first measurement")
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        _, said = self.finish(process, status=130)
        self.assertIn("interrupted", said)
        there = [run["rounds"] for run in self.results()["speed"]["runs"]]
        self.finish(self.start(*arguments))
        value = self.results()
        self.assertEqual([run["rounds"][:len(some)] for run, some in zip(value["speed"]["runs"], there)], there)
        self.assertEqual([len(run["rounds"]) for run in value["speed"]["runs"]], [2, 2])
        self.assertEqual([run["asked"] for run in value["tasks"]["runs"]], [1, 1])
        self.assertEqual([run["document"] for run in value["closeness"]["documents"]], [0])
        self.assertEqual(len(value["earlier_manifests"]), 1)
        # A finished one measures nothing.
        _, progress = self.finish(self.start(*arguments))
        self.assertNotIn("round", progress)
        self.assertNotIn("full attention", progress)
        _, said = self.finish(self.start(*arguments, "--select", "4%"), status=1)
        self.assertIn("select: 3.0 there, 4.0 here", said)
        _, said = self.finish(self.start(*arguments, "--closeness", "2"), status=1)
        self.assertIn("closeness: 1 there, 2 here", said)

    def test_speed_has_the_other_engine_beside_it(self):
        with open(self.path("peer"), "w", encoding="utf-8") as file:
            file.write(PEER)
        os.chmod(self.path("peer"), 0o700)
        said, _ = self.finish(self.start("speed", "--policy", "full,dynakv", "--rounds", "1", "--peer",
                                         self.path("peer"), "--trace", self.path("t.json")))
        self.assertIn("12.50 tokens/s, the best of 2 settings", said)
        for run in self.results()["runs"]:
            self.assertGreater(run["prefill"]["prefill_seconds"], 0)
        self.assertNotIn("predict", self.spans(f"t-{CONTEXT}-full.json"))
        self.assertIn("predict", self.spans(f"t-{CONTEXT}-dynakv.json"))
        self.assertEqual([peer["decode_tokens_per_second"] for peer in self.results()["peers"]], [12.5, 12.5])

    def test_speed_says_that_keys_and_values_are_synthetic(self):
        arguments = ("speed", "--policy", "dynakv", "--rounds", "1", "--batch", "2", "--synthetic-kv")
        said, _ = self.finish(self.start(*arguments))
        self.assertIn("synthetic keys and values (--synthetic-kv), 2 conversations at once", said)
        self.assertIs(self.results()["configuration"]["synthetic_kv"], True)
        _, said = self.finish(self.start(*arguments[:-1]), status=1)
        self.assertIn("synthetic_kv: True there, False here", said)

    def test_speed_goes_on_with_a_text(self):
        text = self.path("text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write("The keeper of the north light wrote down what he saw. " * CONTEXT)
        arguments = ("speed", "--policy", "dynakv,morph", "--rounds", "1", "--text", text)
        said, _ = self.finish(self.start(*arguments))
        self.assertIn("conversations of text.txt (--text)", said)
        # Another text under the same name is another measurement.
        with open(text, "w", encoding="utf-8") as file:
            file.write("A short one.")
        _, said = self.finish(self.start(*arguments), status=1)
        self.assertIn("text (SHA-256)", said)
        os.remove(self.out)
        _, said = self.finish(self.start(*arguments), status=1)
        self.assertIn(f"tokens, and --context asks for {CONTEXT}: give a longer text", said)


if __name__ == "__main__":
    try:
        import grpc  # noqa: F401  pylint: disable=unused-import
        import matplotlib  # noqa: F401  pylint: disable=unused-import
    except ImportError as error:
        sys.exit(f"{error}: deploy/install_packages.sh tests/packages.txt")
    unittest.main()
