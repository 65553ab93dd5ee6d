"""`cairn chat` through pipes, and where its daemon comes and goes.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/chat_life_test.py
"""
import os
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT, write_model_with_template
from terminal import Terminal

# Whole: the program shows its prompt, and the cursor is behind it.
PROMPT = r"> \Z"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CTRL_D, ENTER = b"\x04", b"\r"


class ChatOfAnotherModelTest(unittest.TestCase):
    def test_conversation_of_another_model_is_refused_at_once(self):
        with Cairn() as cairn:
            number = str(cairn.generate("Mira", "--tokens", "1")["conversation_id"])
            cairn.compute.stop()
            cairn.model = cairn.path("other.gguf")
            write_model_with_template(cairn.model, CHATML)
            cairn.write_compute_config("")
            cairn.compute.start()
            done = cairn.run("chat", "--conversation", number, stdin=b"Hello\n")
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertRegex(done.stderr.decode(), rf"\Acairn: conversation {number} belongs to another model file: "
                             r"start cairn-compute-node with that model, or begin a conversation without "
                             r"--conversation\n\Z")
            done = cairn.run("chat", "--conversation", "77", stdin=b"Hello\n")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"there is no conversation 77", done.stderr)

    def test_model_that_changes_during_a_chat_is_no_place_to_go_on(self):
        with Cairn() as cairn:
            environment = {**os.environ, "XDG_STATE_HOME": cairn.path("state")}
            with Terminal(cairn.command("chat", "--tokens", "3"), environment) as t:
                t.wait_for(PROMPT)
                t.send(b"Hello" + ENTER)
                t.wait_for(PROMPT)
                cairn.compute.stop()
                cairn.model = cairn.path("other.gguf")
                write_model_with_template(cairn.model, CHATML)
                cairn.write_compute_config("")
                cairn.compute.start()
                t.send(b"Hello" + ENTER)
                self.assertEqual(t.wait(), 1)
                self.assertRegex(t.shown, r"cairn: .*another model")
                self.assertNotIn("go on with", t.shown)


    def test_chat_begins_anew_when_nothing_of_its_first_turn_is_kept(self):
        with Cairn() as cairn:
            environment = {**os.environ, "XDG_STATE_HOME": cairn.path("state")}
            path = cairn.path("long.txt")
            with open(path, "w", encoding="utf-8") as file:
                with open(DEMO_TEXT, encoding="utf-8") as demo:
                    file.write(demo.read() * 5)
            with Terminal(cairn.command("chat", "--tokens", "3", "--policy", "full", "--file", path), environment) as t:
                t.wait_for(PROMPT)
                t.send(ENTER)
                t.wait_for("reading")
                cairn.compute.kill()
                t.wait_for("cairn: (.|\n)*" + PROMPT)
                cairn.compute.start()
                t.send(b"Hello" + ENTER)
                t.wait_for("Hello(.|\n)*" + PROMPT)
                self.assertNotIn("there is no conversation", t.shown)
                t.send(CTRL_D)
                self.assertEqual(t.wait(), 0)
                self.assertIn("go on with cairn chat --conversation", t.shown)

    def test_what_a_daemon_kept_of_a_turn_that_it_ended_in_is_told_before_the_next(self):
        with Cairn(compute_config="prefill_chunk_tokens: 512\n") as cairn:
            environment = {**os.environ, "XDG_STATE_HOME": cairn.path("state")}
            path = cairn.path("long.txt")
            with open(path, "w", encoding="utf-8") as file, open(DEMO_TEXT, encoding="utf-8") as demo:
                file.write(demo.read() * 5)
            with Terminal(cairn.command("chat", "--tokens", "3", "--policy", "full", "--file", path), environment) as t:
                t.wait_for(PROMPT)
                t.send(ENTER)
                while int(t.wait_for(r"reading \[[# ]{12}\] (\d+)/\d+ tokens").group(1)) < 1100:
                    pass
                cairn.compute.kill()
                t.wait_for("cairn: (.|\n)*" + PROMPT)
                cairn.compute.start()
                t.send(b"Hello" + ENTER)
                t.wait_for(r"cairn: the turn that failed ended after \d+ of \d+ prompt tokens; conversation \d+ keeps "
                           r"the first \d+ of them: type this once more to go on there, or `/new` before it(.|\n)*"
                           + PROMPT)
                t.send(b"Hello" + ENTER)
                t.wait_for(PROMPT)
                t.send(CTRL_D)
                self.assertEqual(t.wait(), 0)
            (conversation,) = cairn.sessions()
            self.assertIn("\nHello\n", cairn.succeed("sessions", "show", str(conversation["conversation_id"])))

    def test_chat_goes_on_as_soon_as_its_daemon_is_back(self):
        with Cairn(kv="ram") as cairn:
            environment = {**os.environ, "XDG_STATE_HOME": cairn.path("state")}
            with Terminal(cairn.command("chat", "--tokens", "3"), environment) as t:
                t.wait_for(PROMPT)
                cairn.compute.stop()
                for _ in range(4):
                    t.send(b"Hello" + ENTER)
                    t.wait_for("cannot reach cairn-compute-node(.|\n)*" + PROMPT)
                cairn.compute.start()
                said = len(t.shown)
                t.send(b"Hello" + ENTER)
                t.wait_for(PROMPT)
                self.assertNotIn("cairn:", t.shown[said:])
                t.send(CTRL_D)
                self.assertEqual(t.wait(), 0)


class PipedChatTest(daemons.SharedCairnTest):
    """Without a terminal: each line is a turn."""

    def chat(self, *arguments, stdin, status=0):
        done = self.cairn.run("chat", "--tokens", "3", "--label", self.id(), *arguments, stdin=stdin)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def text(self):
        (conversation,) = [each for each in self.cairn.sessions() if each["label"] == self.id()]
        return self.cairn.succeed("sessions", "show", str(conversation["conversation_id"]))

    def test_lines_of_any_length_are_turns(self):
        line = "The path to the mill. " * 500
        done = self.chat(stdin=f"{line}\n\n/etc/passwd\n /etc\nHello".encode())
        self.assertEqual(done.stderr.count(b"conversation="), 1)
        for turn in (line, "/etc/passwd", " /etc", "Hello"):
            self.assertIn(turn + "\n", self.text())

    def test_file_and_a_line_are_one_turn(self):
        path = self.cairn.path("piped.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("The code of the red door is 4821.\n")
        done = self.chat("--file", path, stdin=b"What is the code?\n")
        self.assertIn("The code of the red door is 4821.\n\nWhat is the code?\n", self.text())
        self.assertNotIn(b"in front of", done.stderr)

    def test_file_alone_is_a_turn(self):
        path = self.cairn.path("alone.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("The code of the red door is 4821.\n")
        self.chat("--file", path, "--progress", stdin=b"")
        self.assertTrue(self.text().startswith("The code of the red door is 4821.\n"))

    def test_missing_file_is_an_error(self):
        done = self.chat("--file", "/nowhere/at.all", stdin=b"Hello\n", status=1)
        self.assertIn(b"open /nowhere/at.all: No such file", done.stderr)

    def test_unknown_command_is_refused_as_at_a_terminal(self):
        done = self.chat(stdin=b"/fiel x\nHello\n", status=1)
        self.assertRegex(done.stderr, rb"\Acairn: there is no /fiel: /help shows the commands; a space in front makes "
                                      rb"it a turn\n(.|\n)*lines that were refused: 1\n\Z")
        self.assertNotIn("/fiel", self.text())

    def test_commands_work_and_one_that_fails_is_told_at_the_end(self):
        path = self.cairn.path("told.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("Mira has the key.\n")
        done = self.chat(stdin=f"/file {path}\nWho?\n/file /nowhere/at.all\n/exit\nnot this\n".encode(), status=1)
        self.assertIn(b"/nowhere/at.all", done.stderr)
        self.assertIn("Mira has the key.\n\nWho?\n", self.text())
        self.assertNotIn("not this", self.text())


if __name__ == "__main__":
    unittest.main()
