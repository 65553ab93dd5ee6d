"""What prevents the compute node from starting, and what its settings look like.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/compute_start_test.py
"""
import subprocess
import unittest

import daemons
from daemons import Cairn, binary


class StartTest(unittest.TestCase):
    """What prevents the compute node from starting."""

    def start(self, *arguments, timeout=daemons.START_TIMEOUT_S):
        return subprocess.run([binary("cairn-compute-node"), *arguments], capture_output=True, timeout=timeout,
                              check=False)

    def refuse(self, *arguments, words):
        done = self.start(*arguments)
        last = done.stderr.decode().splitlines()[-1]
        self.assertEqual(done.returncode, 1, last)
        self.assertTrue(last.startswith("cairn-compute-node cannot start: "), last)
        for word in words:
            self.assertIn(word, last)

    def test_bad_arguments_and_files(self):
        with Cairn() as cairn:
            self.refuse(words=["--model"])
            self.refuse("--nonsense", words=["--nonsense"])
            self.refuse("--model", "x", "--threads", "many", words=["many"])
            self.refuse("--model", "x", "--kv", "tape", words=["tape"])
            socket = ["--socket", cairn.path("other.sock")]
            self.refuse("--model", cairn.path("none.gguf"), "--kv", "ram", *socket, words=["none.gguf"])
            self.refuse("--model", cairn.path("kv.conf"), "--kv", "ram", *socket, words=["kv.conf"])
            self.refuse("--model", cairn.model, "--kv", "ram", "--socket", cairn.socket, words=[cairn.socket])
            self.refuse("--model", cairn.model, "--kv", "ram", "--socket", "/tmp/" + "x" * 200, words=["bytes"])

    def test_bad_configuration_names_the_line(self):
        with Cairn() as cairn:
            path = cairn.path("bad.conf")
            for text, words in (("threads: 2\nthreds: 3\n", [":2:", "threds"]), ("threads: 99999\n", ["threads"]),
                                ("threads: 1\nthreads: 2\n", [":2:"]), ('kv_format: "f8"\n', ["f8"]),
                                ('policy: "nope"\n', ["policy is 'nope'", "full"]),
                                ("select_percent: 0\n", ["select_percent is 0"]),
                                ("select_tokens_min: 500\nselect_tokens_max: 400\n", ["select_tokens_max is 400"]),
                                ("select_tokens_min: 3\n", ["select_tokens_min is 3"]),
                                ("cluster_target_entries: 0\n", ["cluster_target_entries is 0"]),
                                ("estimate_percent: 101\n", ["estimate_percent is 101"]),
                                ("clustering_seed: -1\n", [":1:"])):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.refuse("--model", cairn.model, "--config", path, words=words)

    def test_kv_node_that_does_not_come_is_named(self):
        with Cairn() as cairn:
            path = cairn.path("wait.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("kv_wait_seconds: 1\n")
            self.refuse("--config", path, "--model", cairn.model, "--socket", cairn.path("o.sock"), "--kv-socket",
                        cairn.path("no.sock"), words=[cairn.path("no.sock"), "--kv ram", "after 1 s"])

    def test_printed_configuration_can_be_read_again(self):
        with Cairn() as cairn:
            default = self.start("--print-default-config")
            self.assertEqual(default.returncode, 0)
            path = cairn.path("default.conf")
            with open(path, "wb") as file:
                file.write(default.stdout)
            again = self.start("--config", path, "--model", "m.gguf", "--print-config")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertIn(b'model_path: "m.gguf"', again.stdout)
            self.assertIn(b"socket_mode: 0600", again.stdout)


if __name__ == "__main__":
    unittest.main()
