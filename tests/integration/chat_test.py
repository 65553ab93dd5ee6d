"""`cairn chat` at a terminal.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/chat_test.py
"""
import json
import os
import re
import signal
import stat
import subprocess
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT, binary, wait_until, write_model_with_template
from terminal import Terminal

# Whole: the program shows its prompt, and the cursor is behind it.
PROMPT = r"> \Z"
# Some of an answer, behind the progress that was shown in its place.
ANSWER = r"\r\x1b\[K[^\r\x1b]{3}"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CTRL_C, CTRL_D, CTRL_Z, ENTER, UP = b"\x03", b"\x04", b"\x1a", b"\r", b"\x1b[A"
LINE_MAX_OF_A_TERMINAL = 4095  # in the mode in which it edits lines itself


def pasted(text):
    return b"\x1b[200~" + text.replace("\n", "\r").encode() + b"\x1b[201~"


class ChatTest(unittest.TestCase):
    """With a model whose chat template is ChatML, on a terminal."""

    @classmethod
    def setUpClass(cls):
        cls.cairn = Cairn(extent_file_bytes=256 << 20, compute_config="prefill_chunk_tokens: 2048\n")
        cls.cairn.model = cls.cairn.path("chatml.gguf")
        write_model_with_template(cls.cairn.model, CHATML)
        cls.cairn.write_compute_config("prefill_chunk_tokens: 2048\n")
        cls.cairn.start()

    @classmethod
    def tearDownClass(cls):
        statuses = cls.cairn.stop()
        cls.cairn.__exit__(None, None, None)
        assert statuses == [0, 0], statuses

    def setUp(self):
        self.state = self.cairn.path(self.id().rpartition(".")[2])
        self.history = os.path.join(self.state, "cairn", "chat_history")
        self.environment = {**os.environ, "XDG_STATE_HOME": self.state}

    def chat(self, *arguments, tokens=4):
        """A chat of this test, at its first prompt."""
        label = ("--label", self.id()) if "--conversation" not in arguments else ()
        terminal = Terminal(self.cairn.command("chat", "--tokens", str(tokens), *label, *arguments), self.environment)
        self.addCleanup(terminal.__exit__)
        terminal.wait_for(PROMPT)
        return terminal

    def turn(self, terminal, keys):
        terminal.send(keys)
        terminal.wait_for(PROMPT)

    def leave(self, terminal):
        terminal.send(CTRL_D)
        self.assertEqual(terminal.wait(), 0)

    def mine(self):
        """-> the conversations of this test's chats."""
        return [each for each in self.cairn.sessions() if each["label"] == self.id()]

    def text(self):
        """-> the text of this test's conversation."""
        (conversation,) = self.mine()
        show = ("sessions", "show", str(conversation["conversation_id"]), "--json")
        # An interrupted turn ends a moment after it was told so.
        wait_until(lambda: self.cairn.run(*show).returncode == 0, "the end of the last turn")
        return json.loads(self.cairn.succeed(*show))["text"]

    def long_text(self):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            return file.read() * 5

    # What is typed

    def test_line_of_any_length_is_one_turn(self):
        line = "The path to the mill. " * 500
        terminal = self.chat()
        self.turn(terminal, line.encode() + ENTER)
        self.leave(terminal)
        self.assertIn("user\n" + line, self.text())

    def test_pasted_lines_are_one_turn_that_can_be_edited(self):
        terminal = self.chat()
        terminal.send(pasted("One line,\nanother\tone\n\nand \x1b[31m a thürd"))
        terminal.wait_for("thürd")
        self.turn(terminal, b"\x7f one." + ENTER)
        self.leave(terminal)
        self.assertIn("user\nOne line,\nanother\tone\n\nand \x1b[31m a thür one.", self.text())
        self.assertEqual(self.text().count("user\n"), 1)

    def test_line_break_can_be_typed(self):
        terminal = self.chat()
        self.turn(terminal, b"One line,\x1b\ranother" + ENTER)
        self.leave(terminal)
        self.assertIn("user\nOne line,\nanother", self.text())

    def test_what_is_typed_during_an_answer_is_kept(self):
        line = b"the path " * (LINE_MAX_OF_A_TERMINAL // 8)
        terminal = self.chat(tokens=200)
        terminal.send(b"What is the code?" + ENTER)
        terminal.wait_for("\n")
        terminal.send(line + pasted("\ny") + ENTER)
        terminal.wait_for(r"reading \[#{12}\] (\d+)/\1 tokens[^>]*> (?=the)")
        terminal.wait_for(r"reading \[#{12}\] (\d+)/\1 tokens[^>]*" + PROMPT)
        self.leave(terminal)
        self.assertIn("user\n" + line.decode() + "\ny", self.text())

    def test_what_was_typed_comes_back_also_in_the_next_chat(self):
        first = self.chat()
        self.turn(first, "First, ü\\n,".encode() + b"\x1b\rof two lines" + ENTER)
        self.turn(first, b"second" + ENTER)
        self.turn(first, pasted("long\n" * 10000) + ENTER)
        self.leave(first)
        self.assertEqual(stat.S_IMODE(os.stat(self.history).st_mode), 0o600)
        with open(self.history, encoding="utf-8") as file:
            self.assertEqual(file.read(), "First, ü\\\\n,\\nof two lines\nsecond\n")
        second = self.chat()
        second.send(UP)
        second.wait_for("second")
        second.send(UP)
        second.wait_for("of two lines")
        self.leave_with_text(second)
        self.assertEqual(len(self.mine()), 1)

    def leave_with_text(self, terminal):
        """Ctrl-C takes back what is typed."""
        terminal.send(CTRL_C)
        terminal.wait_for(PROMPT)
        self.leave(terminal)

    def test_history_that_cannot_be_written_stops_nobody(self):
        os.mkdir(self.state)
        with open(os.path.join(self.state, "cairn"), "wb"):  # in place of the folder
            pass
        terminal = self.chat()
        self.assertIn(f"what you type is not kept for later chats: open {self.history}: Not a directory",
                      terminal.shown)
        self.turn(terminal, b"Hello" + ENTER)
        self.leave(terminal)
        self.assertEqual(terminal.shown.count("is not kept"), 1)

    # Commands

    def test_commands(self):
        terminal = self.chat()
        terminal.send(b"/help" + ENTER)
        terminal.wait_for("/file FILE(.|\n)*" + PROMPT)
        terminal.send(b"/fiel x" + ENTER)
        terminal.wait_for("there is no /fiel: /help shows the commands(.|\n)*" + PROMPT)
        terminal.send(b"/file" + ENTER)
        terminal.wait_for("/file needs the name of a file(.|\n)*" + PROMPT)
        terminal.send(b"/file /nowhere/at all" + ENTER)
        terminal.wait_for("open /nowhere/at all: No such file(.|\n)*" + PROMPT)
        self.assertEqual(self.mine(), [])
        terminal.send(b"/file it's a name.txt" + ENTER)
        terminal.wait_for("open it's a name.txt: No such file(.|\n)*" + PROMPT)
        self.turn(terminal, b" /exit is a word" + ENTER)
        self.turn(terminal, b"/etc/passwd is a file" + ENTER)
        terminal.send(b"/exit" + ENTER)
        self.assertEqual(terminal.wait(), 0)
        self.assertIn("user\n /exit is a word", self.text())
        self.assertIn("user\n/etc/passwd is a file", self.text())

    def test_file_is_a_part_of_the_turn(self):
        path = self.cairn.path("a file.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("The code of the red door is 4821.")
        terminal = self.chat("--file", path)
        self.assertIn(f"{path}: 33 B, in front of your next turn", terminal.shown)
        self.turn(terminal, b"What is the code?" + ENTER)
        os.rename(path, self.cairn.path("named.txt"))
        terminal.send(f"/file {self.cairn.path('nam')}\t".encode())
        terminal.wait_for("ed.txt")  # its name is completed
        self.turn(terminal, ENTER)
        self.turn(terminal, ENTER)  # sends it alone
        self.leave(terminal)
        turns = re.split("user\n", self.text())[1:]
        self.assertTrue(turns[0].startswith("The code of the red door is 4821.\n\nWhat is the code?"), turns)
        self.assertTrue(turns[1].startswith("The code of the red door is 4821.\n"), turns)

    def test_completed_name_is_opened_whatever_is_in_it(self):
        terminal = self.chat()
        names = ("a file.txt", "(1) & [x] $y;.txt", "it's \"b\".txt", "back\\slash.txt", "$#.txt")
        for number, name in enumerate(names):
            folder = self.cairn.path(f"folder {number}")
            os.mkdir(folder)
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write("text")
            typed = folder.replace(" ", "\\ ")
            terminal.send(f"/file {typed}/\t".encode())
            terminal.wait_for(r"\.txt")
            terminal.send(ENTER)
            terminal.wait_for(f"{re.escape(path)}: 4 B, in front of your next turn[^\n]*\n" + PROMPT)
        terminal.send(b"/exit" + ENTER)
        self.assertEqual(terminal.wait(), 0)

    def test_file_of_a_turn_without_an_answer_is_named(self):
        path = self.cairn.path("too long.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("x " * 40000)
        terminal = self.chat("--file", path)
        terminal.send(b"What is this?" + ENTER)
        terminal.wait_for("but the context is(.|\n)*" + re.escape(
            f"{path} is no longer in front of your next turn: `/file {path}` puts it there again\n") + PROMPT)
        self.turn(terminal, b"Hello" + ENTER)
        self.leave(terminal)
        self.assertEqual(terminal.shown.count("no longer"), 1)
        self.assertNotIn("x x", self.text())

    # Interruptions

    def test_interrupt_at_the_prompt_says_how_to_leave_and_then_leaves(self):
        terminal = self.chat()
        self.turn(terminal, b"Hello" + ENTER)
        terminal.send(CTRL_C)
        terminal.wait_for("Ctrl-C once more, Ctrl-D or /exit ends the chat\n" + PROMPT)
        self.turn(terminal, b"Hello again" + ENTER)
        terminal.send(CTRL_C)
        terminal.wait_for("ends the chat\n" + PROMPT)
        terminal.send(CTRL_C)
        self.assertEqual(terminal.wait(), 0)
        (conversation,) = self.mine()
        terminal.wait_for(rf"conversation={conversation['conversation_id']}: go on with cairn chat --conversation "
                          rf"{conversation['conversation_id']} --socket {re.escape(self.cairn.socket)}\n")

    def test_interrupt_ends_the_answer_and_the_chat_goes_on(self):
        terminal = self.chat("--repeat-penalty", "1.2", tokens=20000)
        terminal.send(b"What is the code?" + ENTER)
        terminal.wait_for(ANSWER)
        terminal.send(CTRL_C)
        (conversation,) = self.mine()
        terminal.wait_for(rf"interrupted: what was generated is in conversation {conversation['conversation_id']}; "
                          r"your next turn goes on there, and so does cairn chat --conversation(.|\n)*" + PROMPT)
        terminal.send(b"And the other one?" + ENTER)
        terminal.wait_for(ANSWER)
        terminal.send(CTRL_C)
        terminal.wait_for("interrupted: (.|\n)*" + PROMPT)
        self.leave(terminal)
        self.assertEqual(self.text().count("user\n"), 2)

    def interrupt_in_the_prompt(self, terminal, from_count):
        """Ctrl-C once that many tokens of a long file are read -> what is said then."""
        terminal.send(f"/file {self.long_file()}".encode() + ENTER)
        terminal.wait_for(PROMPT)
        terminal.send(b"What is the code?" + ENTER)
        while int(terminal.wait_for(r"reading \[[# ]{12}\] (\d+)/\d+ tokens").group(1)) < from_count:
            pass
        terminal.send(CTRL_C)
        return terminal.wait_for(r"interrupted [^>]*(?=> \Z)").group(0)

    def long_file(self):
        path = self.cairn.path("long.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.long_text())
        return path

    def test_interrupt_in_a_long_prompt_says_what_is_kept(self):
        terminal = self.chat("--policy", "full")
        said = self.interrupt_in_the_prompt(terminal, 2100)
        (conversation,) = self.mine()
        number = conversation["conversation_id"]
        self.assertRegex(said, rf"\Ainterrupted after \d+ of \d+ prompt tokens; conversation {number} keeps the first "
                               rf"{conversation['token_count']} of them; your next turn goes on there, and so does "
                               rf"cairn chat --conversation {number} ")
        self.assertGreaterEqual(conversation["token_count"], 2048)
        path = self.cairn.path("long.txt")
        self.assertIn(f"{path} is no longer in front of your next turn: `/file {path}` puts all of it there again, "
                      "behind the part that is kept; `/new` before it begins without that part\n", said)
        self.turn(terminal, b"What is the code?" + ENTER)
        self.leave(terminal)
        self.assertEqual(len(self.mine()), 1)
        self.assertIn("What is the code?", self.text())

    def test_interrupt_before_anything_is_kept_leaves_nothing(self):
        terminal = self.chat("--policy", "full")
        said = self.interrupt_in_the_prompt(terminal, 1)
        if self.mine():  # it was faster than the test
            self.skipTest(f"a piece of the prompt was complete already: {said}")
        self.assertRegex(said, r"\Ainterrupted after \d+ of \d+ prompt tokens; nothing is kept: a prompt is stored in "
                               r"pieces \(prefill_chunk_tokens of cairn-compute-node\), and none was complete\n")
        self.turn(terminal, b"Hello" + ENTER)
        self.leave(terminal)
        self.assertEqual(len(self.mine()), 1)

    def test_new_begins_another_conversation(self):
        terminal = self.chat()
        self.turn(terminal, b"Hello" + ENTER)
        (first,) = self.mine()
        terminal.send(b"/new" + ENTER)
        terminal.wait_for(rf"conversation {first['conversation_id']} stays: go on with it by cairn chat --conversation "
                          r"(.|\n)*" + PROMPT)
        self.turn(terminal, b"Hello" + ENTER)
        self.leave(terminal)
        self.assertEqual(len(self.mine()), 2)

    def test_conversation_that_somebody_deletes_is_followed_by_a_new_one(self):
        terminal = self.chat()
        self.turn(terminal, b"Hello" + ENTER)
        (first,) = self.mine()
        self.cairn.succeed("sessions", "delete", str(first["conversation_id"]))
        terminal.send(b"Hello again" + ENTER)
        terminal.wait_for(rf"cairn: there is no conversation {first['conversation_id']}(.|\n)*"
                          r"your next turn begins a new conversation\n" + PROMPT)
        self.turn(terminal, b"Hello again" + ENTER)
        self.leave(terminal)
        (second,) = self.mine()
        self.assertNotEqual(second["conversation_id"], first["conversation_id"])

    def test_turn_of_somebody_else_is_told(self):
        terminal = self.chat()
        self.turn(terminal, b"Hello" + ENTER)
        (conversation,) = self.mine()
        number = str(conversation["conversation_id"])
        second = self.chat("--conversation", number)
        self.cairn.generate("Somebody", "--conversation", number, "--tokens", "1")
        for chat in (terminal, second):
            chat.send(b"Mine" + ENTER)
            chat.wait_for(r"cairn: .*somebody else went on with it(.|\n)*your next turn goes on behind what the "
                          r"conversation holds by then; `/new` begins a new one\n" + PROMPT)
        self.turn(terminal, b"Mine" + ENTER)
        self.leave(terminal)
        self.leave(second)
        self.assertIn("Somebody", self.text())
        self.assertEqual(self.text().count("Mine"), 1)

    def test_progress_has_rate_and_time_left(self):
        terminal = self.chat("--file", self.long_file(), "--policy", "full")
        terminal.send(ENTER)
        terminal.wait_for(r"reading \[#+ *\] \d+/\d+ tokens, \d+/s, \d+ s left")
        terminal.send(CTRL_C)
        terminal.wait_for(PROMPT)
        self.leave(terminal)

    # The terminal

    def test_terminal_is_left_as_it_was_found(self):
        for end in (CTRL_D, b"/exit" + ENTER, CTRL_C * 2, signal.SIGTERM, signal.SIGHUP):
            terminal = self.chat()
            self.assertNotEqual(terminal.settings(), terminal.found_settings())
            if isinstance(end, bytes):
                for key in ([CTRL_C, CTRL_C] if end == CTRL_C * 2 else [end]):
                    terminal.send(key)
                    terminal.wait_for("\n")
                self.assertEqual(terminal.wait(), 0)
            else:
                os.kill(terminal.pid, end)
                self.assertEqual(terminal.wait(), -end)
            self.assertEqual(terminal.settings(), terminal.found_settings(), end)
            self.assertGreater(terminal.shown.rfind("\x1b[?2004l"), terminal.shown.rfind("\x1b[?2004h"), end)

    def test_second_interrupt_ends_a_chat_whose_daemon_says_nothing(self):
        terminal = self.chat("--file", self.long_file(), "--policy", "full")
        terminal.send(ENTER)
        terminal.wait_for("reading")
        self.cairn.compute.hang()
        try:
            terminal.send(CTRL_C)
            terminal.wait_for(r"stopping \.\.\. \(Ctrl-C once more does not wait for it\)")
            # One that comes too soon is the same as the one before.
            wait_until(lambda: terminal.send(CTRL_C) or os.waitid(os.P_PID, terminal.pid,
                                                                  os.WEXITED | os.WNOHANG | os.WNOWAIT), "the end")
        finally:
            self.cairn.compute.go_on()
        self.assertEqual(terminal.wait(), -signal.SIGINT)
        self.assertEqual(terminal.settings(), terminal.found_settings())
        terminal.wait_for(r"\nconversation=(\d+): what was stored of it is kept; go on with cairn chat --conversation "
                          rf"\1 --socket {re.escape(self.cairn.socket)}\n")

    def test_daemon_may_be_started_in_the_line_before(self):
        link = self.cairn.path("later.sock")
        terminal = Terminal([binary("cairn"), "chat", "--socket", link], self.environment)
        self.addCleanup(terminal.__exit__)
        terminal.wait_for(f"waiting up to 5 s for cairn-compute-node at {re.escape(link)}\n")
        os.symlink(self.cairn.socket, link)
        terminal.wait_for(PROMPT)
        self.leave(terminal)

    def test_stopped_chat_gives_the_terminal_back_and_goes_on(self):
        # A process can only be stopped where a shell could let it go on.
        command = self.cairn.command("chat", "--tokens", "4", "--label", self.id())
        shell = ["/bin/sh", "-c", 'set -m; "$@"; echo stopped; read line; fg', "sh", *command]
        with Terminal(shell, self.environment) as terminal:
            terminal.wait_for(PROMPT)
            terminal.send(b"Half a line")
            terminal.wait_for("Half a line")
            at_work = terminal.settings()
            terminal.send(CTRL_Z)
            terminal.wait_for("stopped\n")
            self.assertEqual(terminal.settings(), terminal.found_settings())
            self.assertIn("\x1b[?2004l", terminal.shown)
            terminal.send(b"\n")
            terminal.wait_for("> Half a line")
            self.assertEqual(terminal.settings(), at_work)
            terminal.resize(24, 30)
            self.turn(terminal, b" and more" + ENTER)
            terminal.send(CTRL_D)
            self.assertEqual(terminal.wait(), 0)
        self.assertIn("user\nHalf a line and more", self.text())

    def test_window_may_become_smaller_than_what_is_typed(self):
        for rows, length in ((10, 1900), (5, 500), (3, 300), (1, 85)):
            terminal = self.chat()
            terminal.send(pasted("x" * length))
            terminal.wait_for("x" * 10)
            terminal.resize(rows, 80)
            for key in b"yz":
                terminal.send(bytes([key]))
                terminal.wait_for(chr(key))
            terminal.send(b"\x1b[D" * 3 + b"w" + ENTER)  # the cursor is where it was
            terminal.wait_for(PROMPT)
            self.leave(terminal)
        texts = [self.cairn.succeed("sessions", "show", str(each["conversation_id"])) for each in self.mine()]
        self.assertEqual(len(texts), 4)
        self.assertTrue(all("xwxyz" in text for text in texts), texts)

    def test_window_may_be_too_small_for_people(self):
        line = "abcdefgh, " * 25
        for rows, columns in ((3, 7), (2, 7), (3, 5), (5, 40)):
            terminal = self.chat()
            terminal.resize(rows, columns)
            terminal.send(line.encode())
            terminal.send(b"\x01\x05" + b"and more " * 9 + b"\x01\x05" + ENTER)  # to the begin, and to the end
            terminal.wait_for(PROMPT)
            self.leave(terminal)
        texts = [self.cairn.succeed("sessions", "show", str(each["conversation_id"])) for each in self.mine()]
        self.assertEqual(len(texts), 4)
        self.assertTrue(all(line + "and more " * 9 in text for text in texts), texts)

    def test_what_a_terminal_would_obey_is_shown_escaped(self):
        text = "red \x1b[31m, bell \x07, \u009b, line\n\ttab, ü"
        number = str(self.cairn.generate(text, "--tokens", "0")["conversation_id"])
        escape = subprocess.run([binary("cairn"), "model", "tokenize", daemons.MODEL], input=b"\x1b",
                                capture_output=True, check=True).stdout.decode().strip()
        generated = ("generate", "x", "--tokens", "2", "--ephemeral", "--logit-bias", f"{escape}=100")
        for arguments, raw in ((("sessions", "show", number), text + "\n"), (generated, "\x1b\x1b\n")):
            self.assertEqual(self.cairn.succeed(*arguments), raw)
            with Terminal(self.cairn.command(*arguments), self.environment) as terminal:
                self.assertEqual(terminal.wait(), 0)
                shown = raw.replace("\x1b", "\\u001b").replace("\x07", "\\u0007").replace("\u009b", "\\u009b")
                self.assertTrue(terminal.shown.endswith(shown), terminal.shown)
        terminal = self.chat("--logit-bias", f"{escape}=100", tokens=2)
        terminal.send(b"Hello" + ENTER)
        terminal.wait_for(r"\\u001b\\u001b\n" + PROMPT)
        self.leave(terminal)


if __name__ == "__main__":
    unittest.main()
