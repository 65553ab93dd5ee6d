"""What users see when the flash is full.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/full_flash_test.py
"""
import unittest

from daemons import Cairn
from generate_test import ANSWER, QUESTION

# Of several chunks, so that its clusters are made again.
CHUNKS = "prefill_chunk_tokens: 128\n"
REGROUPING_FAILED = "prompt keeps the clusters of its chunks"


class FullFlashTest(unittest.TestCase):
    def test_full_flash_says_what_the_conversation_keeps(self):
        with Cairn(extent_file_bytes=4 << 20) as cairn:
            done = cairn.run("generate", QUESTION, "--file", cairn.short_text(), "--ignore-end", "--tokens", "20000")
            self.assertEqual(done.returncode, 1)
            listed = cairn.sessions()[0]
            self.assertIn(f"keeps {listed['token_count']} tokens".encode(), done.stderr)
            self.assertGreater(listed["token_count"], 0)
            cairn.succeed("sessions", "delete", str(listed["conversation_id"]))
            cairn.generate("Mira", "--tokens", "3")

    def test_a_prompt_without_room_for_new_clusters_keeps_those_of_its_chunks(self):
        for size_mib, fits in ((3, False), (16, True)):
            with self.subTest(size_mib=size_mib), \
                    Cairn(compute_config=CHUNKS + 'policy: "dynakv"\n', extent_file_bytes=size_mib << 20) as cairn:
                said = cairn.generate(QUESTION, "--file", cairn.short_text(), "--stop", "\n")
                self.assertEqual(said["text"], ANSWER)
                self.assertEqual(REGROUPING_FAILED in cairn.compute.log(), not fits)
                number = str(said["conversation_id"])
                # It goes on, also behind a restart.
                self.assertEqual(cairn.generate(QUESTION, "--conversation", number, "--stop", "\n")["text"], ANSWER)
                self.assertEqual(cairn.stop(), [0, 0])
                cairn.start()
                self.assertEqual(cairn.generate(QUESTION, "--conversation", number, "--stop", "\n")["text"], ANSWER)


if __name__ == "__main__":
    unittest.main()
