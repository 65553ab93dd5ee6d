"""What the daemons do when the other one, its store or the model is not what it was.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/both_daemons_test.py
"""
import os
import shutil
import signal
import unittest

import daemons
from daemons import Cairn, wait_until

QUESTION = "\nQ: What is the code of the green lantern?\nA:"
ENDLESS = ["--ignore-end", "--tokens", "20000"]


def begin(cairn, *arguments):
    """A generation that has answered something: -> the process, what was read of the answer."""
    process = cairn.popen("generate", QUESTION, "--file", cairn.short_text(), *ENDLESS, *arguments)
    return process, process.read(40)


def finish(generation):
    """-> all of the answer that came, the errors."""
    process, text = generation
    rest, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
    return (text + rest).decode(), error.decode()


class StopTest(unittest.TestCase):
    """Both daemons get SIGTERM."""

    def check_all_is_stored(self, cairn, generations):
        shown = [finish(generation) for generation in generations]
        cairn.start()
        stored = [cairn.succeed("sessions", "show", str(session["conversation_id"])) for session in cairn.sessions()]
        self.assertEqual(len(stored), len(generations))
        for text, error in shown:
            self.assertIn("keeps what was generated", error)
            # Its last character may be one that a later token completes.
            self.assertTrue(any(text[:-1] in conversation for conversation in stored), text[-100:])
        self.assertEqual(cairn.stop(), [0, 0])

    def test_what_was_shown_is_stored_when_both_are_told_at_once(self):
        with Cairn(compute_config="generation_count_max: 2\n") as cairn:
            generations = [begin(cairn) for _ in range(2)]
            for daemon in (cairn.kv, cairn.compute):
                daemon.process.send_signal(signal.SIGTERM)
            statuses = [daemon.process.wait(daemons.STOP_TIMEOUT_S) for daemon in (cairn.compute, cairn.kv)]
            self.assertEqual(statuses, [0, 0])
            self.check_all_is_stored(cairn, generations)

    def test_what_was_shown_is_stored_when_the_compute_node_is_told_after_the_kv_node_went(self):
        with Cairn() as cairn:
            generation = begin(cairn)
            self.assertEqual(cairn.kv.stop(), 0)
            self.assertEqual(cairn.compute.stop(), 0)
            self.check_all_is_stored(cairn, [generation])

    def test_what_was_lost_is_said(self):
        with Cairn() as cairn:
            generation = begin(cairn)
            cairn.kv.kill()
            self.assertEqual(cairn.compute.stop(), 1)
            self.assertRegex(cairn.compute.log(), r"stopping without \d+ tokens that clients have seen")
            self.assertRegex(finish(generation)[1], r"keeps \d+ tokens, without the last "
                                                    r"(\d+ of the prompt and the )?\d+ of the answer")

    def test_a_generation_goes_on_over_a_restart_of_the_kv_node(self):
        with Cairn() as cairn:
            generation = begin(cairn)
            self.assertEqual(cairn.kv.stop(), 0)
            cairn.kv.start()
            self.assertEqual(len(generation[0].read(4000)), 4000)
            self.assertEqual(cairn.stop(), [0, 0])
            finish(generation)


class StoreTest(unittest.TestCase):
    """The KV node comes back with another store."""

    def test_nothing_of_another_store_is_used_or_changed(self):
        with Cairn() as cairn:
            store, first, second = (cairn.path(name) for name in ("store", "first", "second"))
            cairn.generate(QUESTION, "--file", cairn.short_text(), "--tokens", "3")
            cairn.kv.stop()
            shutil.move(store, first)
            cairn.kv.start()
            # New conversations of another store are as good as those of the first.
            number = cairn.generate(QUESTION, "--file", cairn.short_text(), "--tokens", "3")["conversation_id"]
            before = cairn.sessions()
            generation = begin(cairn)
            cairn.kv.kill()
            shutil.move(store, second)
            shutil.move(first, store)
            cairn.kv.start()
            _, error = finish(generation)
            self.assertIn("has another store now", error)
            self.assertEqual([s["token_count"] for s in cairn.sessions()], [s["token_count"] for s in before])
            self.assertEqual(cairn.generate("x", "--conversation", str(number), "--tokens", "2")["reused_token_count"],
                             before[0]["token_count"])
            self.assertEqual(cairn.stop(), [0, 0])


class EphemeralTest(unittest.TestCase):
    def test_nothing_is_left_behind_by_a_compute_node_that_is_killed(self):
        with Cairn() as cairn:
            generation = begin(cairn, "--ephemeral")
            self.assertEqual(len(cairn.sessions()), 1)
            cairn.compute.kill()
            finish(generation)
            cairn.compute.start()
            wait_until(lambda: cairn.sessions() == [], "deletion of what was ephemeral")
            self.assertEqual(cairn.stop(), [0, 0])

    def test_nothing_is_left_behind_when_both_are_killed(self):
        with Cairn() as cairn:
            generation = begin(cairn, "--ephemeral")
            cairn.compute.kill()
            cairn.kv.kill()
            finish(generation)
            cairn.start()
            self.assertEqual(cairn.sessions(), [])
            self.assertEqual(cairn.stop(), [0, 0])


class ModelTest(unittest.TestCase):
    """The model's file changes while it is in use."""

    def check_change_ends_the_daemon(self, change):
        with Cairn() as cairn:
            path = cairn.path("model.gguf")
            shutil.copyfile(daemons.MODEL, path)
            cairn.model = path
            cairn.write_compute_config("")
            cairn.compute.stop()
            cairn.compute.start()
            generation = begin(cairn)
            change(path)
            _, error = finish(generation)
            self.assertIn(f"model file '{path}'", error)
            self.assertEqual(cairn.compute.process.wait(daemons.STOP_TIMEOUT_S), 1)
            self.assertIn(f"model file '{path}'", cairn.compute.log())
            # What was answered before is right, and stored.
            cairn.model = daemons.MODEL
            cairn.write_compute_config("")
            cairn.compute.start()
            self.assertGreater(cairn.sessions()[0]["token_count"], 800)
            self.assertEqual(cairn.stop(), [0, 0])

    def test_an_overwritten_model_is_not_served(self):
        def overwrite(path):
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                file.write(b"\x3c" * 100000)
        self.check_change_ends_the_daemon(overwrite)

    def test_a_model_that_is_cut_off_is_not_served(self):
        self.check_change_ends_the_daemon(lambda path: os.truncate(path, os.path.getsize(path) // 2))


if __name__ == "__main__":
    unittest.main()
