"""What the daemons of this build write is what docs/on-disk-format.md says: the reader of that page reads it.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/written_store_test.py
Exit code 77: skipped, there is no `ldb` (Debian: rocksdb-tools).
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

import daemons

sys.path.insert(0, os.path.join(daemons.REPOSITORY, "tests", "unit", "util"))
import store_reader  # noqa: E402  pylint: disable=wrong-import-position

SKIPPED = 77
PROMPT_CHARACTERS = 3000
TOKENS = 40
EXTENT_FILE_BYTES = 16 << 20


class WrittenStoreTest(unittest.TestCase):
    def setUp(self):
        self.cairn = self.enterContext(daemons.Cairn(extent_file_bytes=EXTENT_FILE_BYTES))
        with open(daemons.DEMO_TEXT, encoding="utf-8") as file:
            self.prompt = file.read()[:PROMPT_CHARACTERS]

    def read(self):
        """A copy of the store, and the same counts as `cairn-kv-util verify`."""
        copy = self.cairn.path("copy")
        shutil.copytree(self.cairn.path("store"), copy)
        store = store_reader.Store.open(copy)
        self.assertEqual(store.problems, [])
        verify = subprocess.run([daemons.binary("cairn-kv-util"), "verify", "--store", copy], capture_output=True,
                                text=True, timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(verify.returncode, 0, verify.stdout + verify.stderr)
        said = dict(re.findall(r"(\w+)=(\d+)", verify.stdout))
        for name, count in store.to_json()["counts"].items():
            self.assertEqual(int(said[name]), count, name)
        return store

    def generate(self, *arguments):
        return self.cairn.generate("--tokens", str(TOKENS), "--ignore-end", *arguments)

    def expect(self, store, told):
        """The conversation's own ids are the end of what the store has."""
        chain = store.chains[told["conversation_id"]]
        self.assertEqual(len(chain.tokens), told["conversation_token_count"])
        self.assertEqual(chain.tokens[-TOKENS:], told["token_ids"])
        self.assertFalse(chain.lost)

    def test_quantised_entries_lie_as_the_page_says(self):
        told = []
        for name in ("q8", "q4"):
            self.assertEqual(self.cairn.compute.stop(), 0)
            self.cairn.write_compute_config(f'kv_format: "{name}"\n')
            self.cairn.compute.start()
            told.append(self.generate(self.prompt))
        self.assertEqual(self.cairn.stop(), [0, 0])
        store = self.read()
        for one in told:
            self.expect(store, one)

    def test_a_stopped_store_is_whole_and_says_what_was_generated(self):
        first = self.generate(self.prompt)
        other = self.generate("--label", "other", "A short one.")
        again = self.generate("--conversation", str(first["conversation_id"]), " And then?")
        self.assertEqual(self.cairn.stop(), [0, 0])
        store = self.read()
        self.assertEqual(len(store.chains), 2)
        self.expect(store, again)
        self.expect(store, other)
        self.assertEqual(store.sessions[other["conversation_id"]].label, b"other")

    def test_a_killed_daemons_store_is_whole(self):
        told = self.generate(self.prompt)
        self.cairn.kv.kill()
        self.cairn.compute.kill()
        self.expect(self.read(), told)


if __name__ == "__main__":
    if not store_reader.ldb_path():
        print("SKIPPED: no `ldb`, which reads the rows: install Debian's rocksdb-tools")
        sys.exit(SKIPPED)
    unittest.main()
