"""A compute node that has the store for itself (kv: "embedded"), and the daemons on the same store.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/embedded_test.py
"""
import subprocess
import unittest

import daemons
from daemons import Cairn, binary
from generate_test import LONG, QUESTION
from restart_test import ENDLESS

POLICIES = ("full", "dynakv", "kvswap", "morph-recall")


class EmbeddedTest(unittest.TestCase):
    def test_it_answers_as_the_daemons_and_each_goes_on_with_the_others_conversations(self):
        with Cairn(kv="embedded") as cairn:
            stored = {policy: cairn.generate("", "--file", cairn.short_text(), "--tokens", "0", "--policy", policy)
                      for policy in POLICIES}
            forks = {policy: [str(cairn.fork(first["conversation_id"], first["conversation_token_count"]))
                              for _ in range(3)] for policy, first in stored.items()}
            here = self.answers(cairn, [each[0] for each in forks.values()])
            self.assertEqual(cairn.stop(), [0])
            cairn.start()  # what it reads now was on flash
            self.assertEqual(self.answers(cairn, [each[1] for each in forks.values()]), here)
            self.assertEqual(cairn.stop(), [0])
            cairn.kv_place = "node"
            cairn.write_compute_config("")
            cairn.start()
            self.assertEqual(self.answers(cairn, [each[2] for each in forks.values()]), here)
            self.assertEqual(cairn.stop(), [0, 0])

    def answers(self, cairn, conversations):
        return [cairn.generate(QUESTION, "--conversation", number, *LONG)["token_ids"] for number in conversations]

    def test_a_kill_costs_no_more_than_what_no_checkpoint_has(self):
        # A sixteenth of it, 25 tokens, is what may be without a checkpoint.
        with Cairn(kv="embedded", compute_config="dram_budget_bytes: 1048576\n") as cairn:
            first = cairn.generate("", "--file", cairn.short_text(), "--tokens", "0")
            number, count = str(first["conversation_id"]), first["conversation_token_count"]
            fork = str(cairn.fork(first["conversation_id"], count))
            process = cairn.popen("generate", QUESTION, "--conversation", fork, *ENDLESS)
            shown = process.read(600)
            cairn.compute.kill()
            process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertEqual(process.returncode, 1)
            cairn.compute.start()
            tokens = {each["conversation_id"]: each["token_count"] for each in cairn.sessions()}
            self.assertEqual(tokens[int(number)], count)
            # A token has some letters; the question has few tokens, and the last ones were not stored yet.
            self.assertGreater(tokens[int(fork)], count + len(shown) // 6 - 50)
            undisturbed = cairn.generate(QUESTION, "--conversation", number, *LONG)
            self.assertEqual(undisturbed["reused_token_count"], count)
            self.assertEqual(cairn.stop(), [0])

    def test_an_answer_that_is_stopped_is_stored(self):
        with Cairn(kv="embedded") as cairn:
            first = cairn.generate("", "--file", cairn.short_text(), "--tokens", "0")
            number = str(first["conversation_id"])
            process = cairn.popen("generate", QUESTION, "--conversation", number, *ENDLESS)
            process.read(20)
            self.assertEqual(cairn.stop(), [0])
            process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertEqual(process.returncode, 1)
            cairn.start()
            self.assertGreater(cairn.sessions()[0]["token_count"], first["conversation_token_count"])
            self.assertEqual(cairn.stop(), [0])

    def test_a_store_is_one_process_s(self):
        with Cairn(kv="embedded") as cairn:
            other = subprocess.run([binary("cairn-kv-node"), "--config", cairn.path("kv.conf"), "--log", "stderr"],
                                   capture_output=True, text=True, check=False, timeout=daemons.START_TIMEOUT_S)
            self.assertEqual(other.returncode, 1)
            self.assertIn('a cairn-compute-node with kv: "embedded" has it', other.stderr.splitlines()[-1])
            self.assertEqual(cairn.stop(), [0])

    def test_its_status_says_whose_the_store_is(self):
        with Cairn(kv="embedded") as cairn:
            self.assertIn("is not needed: the store is cairn-compute-node's own", cairn.status())
            self.assertEqual(cairn.stop(), [0])

    def test_a_configuration_that_cannot_be_used_is_named(self):
        with Cairn(kv="ram") as cairn:
            for kv, path, words in (("embedded", "none", "No such file"), ("embedded", "compute.conf", "model_path"),
                                    ("node", "kv.conf", 'it is for kv: "embedded"')):
                with open(cairn.path("other.conf"), "w", encoding="utf-8") as file:
                    file.write(f'model_path: "{cairn.model}"\nsocket_path: "{cairn.path("o.sock")}"\nkv: "{kv}"\n'
                               f'kv_config_path: "{cairn.path(path)}"\n')
                done = subprocess.run([binary("cairn-compute-node"), "--config", cairn.path("other.conf")],
                                      capture_output=True, text=True, check=False, timeout=daemons.START_TIMEOUT_S)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("kv_config_path", done.stderr.splitlines()[-1])
                self.assertIn(words, done.stderr.splitlines()[-1])
            self.assertEqual(cairn.stop(), [0])


if __name__ == "__main__":
    unittest.main()
