"""A bit that flipped on flash: the conversation is computed again from its tokens, and goes on with the same words.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/damaged_test.py
"""
import shutil
import signal
import unittest

import daemons

PAGE_BYTES = 4096
TEXT_CHARACTERS = 10000
TOKENS = 24
QUESTION = "\nQ: What is the code of the green lantern?\nA:"


class DamagedTest(unittest.TestCase):
    def setUp(self):
        self.cairn = self.enterContext(daemons.Cairn())
        with open(daemons.DEMO_TEXT, encoding="utf-8") as file:
            self.text = file.read()[:TEXT_CHARACTERS]

    def go_on(self, conversation, *arguments):
        """-> the ids of an answer, and what was said on standard error."""
        done = self.cairn.run("generate", "--json", "--tokens", str(TOKENS), "--ignore-end", "--conversation",
                              str(conversation), *arguments, QUESTION)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return daemons.json.loads(done.stdout), done.stderr.decode()

    def used_pages(self):
        """-> the numbers of the pages that hold something."""
        with open(self.cairn.path("store/extents.cairn"), "rb") as file:
            data = file.read()
        return [page for page in range(2, len(data) // PAGE_BYTES)
                if any(data[page * PAGE_BYTES:(page + 1) * PAGE_BYTES])]

    def flip_a_bit(self, page):
        """Of a byte that is used, in the middle of those: what lies between parts nobody reads."""
        with open(self.cairn.path("store/extents.cairn"), "r+b") as file:
            file.seek(page * PAGE_BYTES)
            data = file.read(PAGE_BYTES)
            used = [i for i in range(PAGE_BYTES) if data[i]]
            at = used[len(used) // 2]
            file.seek(page * PAGE_BYTES + at)
            file.write(bytes([data[at] ^ 4]))

    def test_a_conversation_goes_on_with_the_same_words(self):
        made, pages = {}, {}
        for policy in ("full", "dynakv"):
            made[policy] = self.cairn.generate("--tokens", "0", "--policy", policy, "--label", f"about {policy}",
                                               self.text)
            self.assertGreater(made[policy]["conversation_token_count"], 2000)
            pages[policy] = [page for page in self.used_pages() if page not in pages.get("full", [])]
        listed = self.cairn.sessions()
        self.assertEqual(self.cairn.stop(), [0, 0])
        shutil.copytree(self.cairn.path("store"), self.cairn.path("whole"))
        # What an undamaged store answers.
        self.cairn.start()
        expected = {policy: self.go_on(told["conversation_id"])[0] for policy, told in made.items()}
        self.assertEqual(self.cairn.stop(), [0, 0])
        shutil.rmtree(self.cairn.path("store"))
        shutil.move(self.cairn.path("whole"), self.cairn.path("store"))

        # One attends everything, so one bit is enough; of the other whatever it reads.
        self.flip_a_bit(pages["full"][len(pages["full"]) // 2])
        for page in pages["dynakv"]:
            self.flip_a_bit(page)
        self.cairn.start()
        for policy, told in made.items():
            answer, said = self.go_on(told["conversation_id"], "--progress")
            count = told["conversation_token_count"]
            self.assertIn(f"its {count} tokens are computed again", said)
            self.assertIn(f"computing again {count}/{count} tokens", said)
            for field in ("conversation_id", "token_ids", "reused_token_count", "prompt_token_count",
                          "conversation_token_count", "policy"):
                self.assertEqual(answer[field], expected[policy][field], field)
        self.assertIn("is damaged and computed again", self.cairn.compute.log())
        # It is the same one to whoever lists it.
        for before, after in zip(listed, self.cairn.sessions(), strict=True):
            for field in ("conversation_id", "label", "create_time"):
                self.assertEqual(before[field], after[field], field)
        # And whole: also behind a restart of both.
        self.assertEqual(self.cairn.stop(), [0, 0])
        self.cairn.start()
        for told in made.values():
            self.assertNotIn("damaged", self.go_on(told["conversation_id"])[1])
        self.assertEqual(self.cairn.stop(), [0, 0])
        verify = daemons.subprocess.run([daemons.binary("cairn-kv-util"), "verify", "--store",
                                         self.cairn.path("store")], capture_output=True, text=True,
                                        timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(verify.returncode, 0, verify.stdout)

    def test_an_interrupt_leaves_it_as_it_was(self):
        with open(daemons.DEMO_TEXT, encoding="utf-8") as file:
            told = self.cairn.generate("--tokens", "0", "--policy", "full", file.read())
        conversation, count = told["conversation_id"], told["conversation_token_count"]
        pages = self.used_pages()
        self.assertEqual(self.cairn.stop(), [0, 0])
        self.flip_a_bit(pages[len(pages) // 2])
        self.cairn.start()
        turn = self.cairn.popen("generate", "--tokens", "1", "--conversation", str(conversation), QUESTION)
        said = turn.stderr.readline().decode()
        self.assertIn(f"its {count} tokens are computed again", said)
        turn.send_signal(signal.SIGINT)
        rest = turn.communicate(timeout=daemons.RUN_TIMEOUT_S)[1].decode()
        if turn.returncode == 0:
            self.skipTest("it was faster than the test")
        self.assertEqual(turn.returncode, 130, rest)
        self.assertIn("while the conversation was computed again: it is as it was", rest)
        self.assertEqual([each["token_count"] for each in self.cairn.sessions() if each["label"] == ""], [count])
        self.assertIn(f"its {count} tokens are computed again", self.go_on(conversation)[1])


if __name__ == "__main__":
    unittest.main()
