"""cairn-tune over real daemons: a file that the compute node takes, and one that it refuses.

Nothing here depends on how fast the machine is.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/bench_tune_test.py
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import daemons
from daemons import Cairn

PROGRAM = os.path.join(daemons.REPOSITORY, "clients", "bench", "cairn-tune")
TASKS = os.path.join(daemons.REPOSITORY, "tests", "data", "tasks-dev-4k.jsonl")
CONTEXT = 1024
# Some tokens of the text are the question's and the answer's.
TEXT_TOKENS_MIN = 1200


class BenchTuneTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cairn-tune-test-"))
        self.temporary, self.out, self.text = (os.path.join(self.folder, name) for name in ("tmp", "out", "text"))
        os.mkdir(self.temporary)
        with open(TASKS, encoding="utf-8") as tasks, open(self.text, "w", encoding="utf-8") as text:
            text.write(next(document["context"] for document in map(json.loads, tasks)
                            if document["token_count"] >= TEXT_TOKENS_MIN))

    def tearDown(self):
        self.assertEqual(os.listdir(self.temporary), [], "files that stayed behind")

    def tune(self, *arguments, status=0):
        """-> what it said on stdout and on stderr."""
        done = subprocess.run(
            ["/usr/bin/python3", PROGRAM, "--model", daemons.MODEL, "--text", self.text, "--context", str(CONTEXT),
             "--tokens", "2", "--rounds", "1", "--build", os.path.dirname(daemons.BIN_DIR), "--out", self.out,
             *arguments], capture_output=True, text=True, env={**os.environ, "TMPDIR": self.temporary}, check=False,
            timeout=daemons.RUN_TIMEOUT_S)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout, done.stderr

    def tuned(self):
        with open(self.out, encoding="utf-8") as file:
            return json.load(file)

    def test_a_file_is_found_kept_and_taken(self):
        # Nothing hides so well that the search ends early.
        said, progress = self.tune("--hidden", "100")
        self.assertIn("kvswap, groups of 4, small keys 4x4", said)
        self.assertIn("dynakv, clusters of 16", said)
        self.assertEqual(len(re.findall(r" taken$", said, re.MULTILINE)), 1, said)
        self.assertIn(self.out, progress)
        entry = self.tuned()["entries"][0]
        self.assertEqual(entry["context_tokens"], CONTEXT)
        self.assertGreater(entry["figures"]["tokens_per_second"], 0)
        # What was measured is there: nothing is stored again.
        again, progress = self.tune("--hidden", "100")
        self.assertEqual(again.split("\n\n")[1], said.split("\n\n")[1])
        self.assertNotIn("stored in", progress)
        self.check_daemon_takes_it(entry)

    def check_daemon_takes_it(self, entry):
        self.change(policy="kvswap", cluster_target_entries=4, small_key_bits="2111")
        with Cairn(compute_config=f'tuning_path: "{self.out}"\n') as cairn:
            tuned = cairn.generate("Hello.", "--tokens", "2")
            cairn.generate("--policy", "full", "Hello.", "--tokens", "2")
            said = re.findall(r"tuned session=(\d+).* entry_tokens=(\d+) policy=(\S+)", cairn.compute.log())
            self.assertEqual(said, [(str(tuned["conversation_id"]), str(entry["context_tokens"]), "kvswap")])
            # It keeps what it was made with.
            refused = cairn.run("generate", "--conversation", said[0][0], "--policy", "full", "More.")
            self.assertIn("uses policy kvswap", refused.stderr.decode())

    def change(self, digest=None, **fields):
        value = self.tuned()
        value["entries"][0].update(fields)
        value["model_digest"] = digest or value["model_digest"]
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump(value, file)

    def test_what_cannot_be_tuned_or_taken_is_said(self):
        _, said = self.tune("--dram-budget", str(1 << 20), "--minutes", "1", status=1)
        self.assertRegex(said, r"no setting keeps within it at 1024 tokens; give \d+ or more")
        shutil.copy(self.out + ".measured", self.out)
        with Cairn() as cairn:
            done = subprocess.run([daemons.binary("cairn-compute-node"), "--config", self.config(cairn)],
                                  capture_output=True, text=True, check=False, timeout=daemons.START_TIMEOUT_S)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"tuning_path {self.out}: it is no file of cairn-tune", done.stderr.splitlines()[-1])
        for arguments, words in ((("--text", "/none"), "cannot read /none"),
                                 (("--context", "100000"), "leaves no room"),
                                 (("--divergence-max", "0.5"), "it must be 1 or more")):
            with self.subTest(arguments):
                self.assertIn(words, self.tune(*arguments, status=2 if "1 or more" in words else 1)[1])

    def config(self, cairn):
        path = os.path.join(self.folder, "tuned.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'model_path: "{daemons.MODEL}"\nkv: "ram"\nsocket_path: "{cairn.path("o.sock")}"\n'
                       f'tuning_path: "{self.out}"\n')
        return path


if __name__ == "__main__":
    unittest.main()
