"""The commands of `cairn` that talk to the daemons: bad input, output that nobody takes, interruptions, messages.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/cli_daemon_test.py
"""
import json
import os
import re
import signal
import subprocess
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT, binary, wait_until

PROMPT_BYTES_MAX = 16 << 20
ENDLESS = ["--ignore-end", "--tokens", "20000"]
NOBODY = 65534
READER_GONE = 141


class CliDaemonTest(daemons.SharedCairnTest):
    def refuse(self, *arguments, words, status=1, stdin=b""):
        """The command must end with `status` and one line that holds all of `words`."""
        done = self.cairn.run(*arguments, stdin=stdin)
        message = done.stderr.decode()
        self.assertEqual(done.returncode, status, message)
        self.assertEqual(done.stdout, b"")
        self.assertRegex(message, r"\Acairn: .*\n\Z")
        for word in words:
            self.assertIn(word, message)

    def labelled(self, label):
        """-> the conversations with that label."""
        return [s for s in self.cairn.sessions() if s["label"] == label]

    # Arguments

    def test_socket_that_is_given_counts_and_not_the_environments(self):
        number = str(self.cairn.generate("Mira", "--tokens", "1")["conversation_id"])
        environment = {**os.environ, "CAIRN_SOCKET": self.cairn.path("nobody.sock")}
        for arguments in (["sessions", "list"], ["sessions", "show", number], ["sessions", "fork", number],
                          ["generate", "x", "--tokens", "1"], ["chat"], ["sessions", "delete", number]):
            done = subprocess.run(self.cairn.command(*arguments), env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=daemons.RUN_TIMEOUT_S, check=False)
            self.assertEqual(done.returncode, 0, (arguments, done.stderr))
            # And the other way round.
            done = subprocess.run([binary("cairn"), *arguments], env={**os.environ, "CAIRN_SOCKET": self.cairn.socket},
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=daemons.RUN_TIMEOUT_S,
                                  check=False)
            missing = arguments[:2] == ["sessions", "delete"]
            self.assertEqual(done.returncode, 1 if missing else 0, (arguments, done.stderr))

    def test_socket_of_the_environment_counts_for_other_clients_too(self):
        programs = ([binary("cairn-client-example")],
                    ["/usr/bin/python3", os.path.join(daemons.REPOSITORY, "clients", "python", "generate.py"), "Mira"])
        for program in programs:
            for socket, status in ((self.cairn.socket, 0), (self.cairn.path("nobody.sock"), 1)):
                done = subprocess.run(program, env={**os.environ, "CAIRN_SOCKET": socket}, capture_output=True,
                                      timeout=daemons.RUN_TIMEOUT_S, check=False)
                self.assertEqual(done.returncode, status, (program, done.stderr))

    def test_prompt_may_come_through_a_pipe(self):
        file = self.cairn.path("piped.txt")
        with open(file, "wb") as target:
            target.write(b"Mira keeps the\n")
        asked = ("generate", "--tokens", "3", "--ignore-end", "--ephemeral")
        told = self.cairn.succeed(*asked, "--file", file)
        self.assertEqual(self.cairn.succeed(*asked, stdin=b"Mira keeps the\n"), told)
        self.refuse("generate", words=["there is no prompt: standard input is empty"])
        self.refuse("generate", "", words=["there is no prompt: standard input is empty"])

    def test_shown_conversation_is_an_object_with_json(self):
        made = self.cairn.generate("Mira keeps \"it\"", "--tokens", "0", "--label", "shown")
        number = made["conversation_id"]
        shown = json.loads(self.cairn.succeed("sessions", "show", str(number), "--json"))
        self.assertEqual(shown.pop("text"), "Mira keeps \"it\"")
        self.assertEqual(shown, self.labelled("shown")[0])

    def test_numbers_out_of_range_are_refused_with_the_range(self):
        for seed in ("-1", "18446744073709551616", "x", "1.5"):
            self.refuse("generate", "x", "--seed", seed, status=2,
                        words=["--seed: a seed is a number from 0 to 18446744073709551615"])
        for value, words in (("abc", "abc is no number: give one from 0 to 10"),
                             ("11", "11 is out of range: give 0 to 10"), ("nan", "nan is out of range"),
                             ("1x", "1x is no number")):
            self.refuse("generate", "x", "--temperature", value, status=2, words=["--temperature: " + words])
        for count in ("0", "-1", "1e3"):
            self.refuse("sessions", "fork", "1", "--tokens", count, status=2,
                        words=[f"--tokens: {count} is "])
        self.cairn.generate("x", "--tokens", "1", "--seed", "18446744073709551615")

    def test_socket_of_the_other_daemon_is_told_apart(self):
        for command in (["sessions", "list"], ["generate", "x"]):
            done = subprocess.run([binary("cairn"), *command, "--socket", self.cairn.kv_socket], capture_output=True,
                                  timeout=daemons.RUN_TIMEOUT_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"is not cairn-compute-node: give its socket, not that of cairn-kv-node", done.stderr)

    # Texts

    def test_text_that_is_not_utf8_is_refused_with_its_source(self):
        bad = self.cairn.path("latin1.txt")
        with open(bad, "wb") as file:
            file.write("a café".encode("latin1"))
        before = self.cairn.sessions()
        for arguments, source, byte in (
                (["generate", b"ab\xff\xfe"], "the prompt", "0xff at offset 2"),
                (["generate", "--file", "-"], "standard input", "0xc3 at offset 3"),
                (["generate", "x", "--file", bad], bad, "0xe9 at offset 5"),
                (["generate", "x", "--label", b"\x80"], "--label", "0x80 at offset 0"),
                (["generate", "x", "--stop", "fine", "--stop", b"a\xf5"], "--stop", "0xf5 at offset 1"),
                (["chat", "--label", b"\xff"], "--label", "0xff at offset 0")):
            self.refuse(*arguments, stdin=b"abc\xc3",
                        words=[f"cairn: {source} is not UTF-8: bad byte {byte};", "iconv"])
        self.assertEqual(self.cairn.sessions(), before)

    def test_text_above_the_limit_is_refused_with_size_and_limit(self):
        path = self.cairn.path("large.txt")
        with open(path, "wb") as file:
            file.truncate(PROMPT_BYTES_MAX + 5)
        self.refuse("generate", "--file", path, words=[path, "has 16777221 bytes: at most 16777216"])
        self.refuse("generate", "--file", "-", stdin=bytes(PROMPT_BYTES_MAX + 1),
                    words=["standard input", "more than 16777216 bytes"])
        os.truncate(path, PROMPT_BYTES_MAX)
        self.refuse("generate", "xyz", "--file", path, words=["the prompt has 16777219 bytes: at most 16777216"])

    def test_folder_is_no_text(self):
        self.refuse("generate", "--file", self.cairn.folder.name, words=[self.cairn.folder.name, "Is a directory"])

    def test_chat_goes_on_behind_a_line_that_it_refuses(self):
        with Cairn(compute_config='turn_template: "Q: {}\\nA:"\nturn_stop: "\\n"\n') as cairn:
            first = cairn.generate("The code of the red door is 4821.\n", "--tokens", "0")
            too_many = b"x " * 40000  # tokens
            lines = [b"\xff\xfe", b"a" * (PROMPT_BYTES_MAX + 1), too_many, b"What is the code of the red door?"]
            done = cairn.run("chat", "--conversation", str(first["conversation_id"]), stdin=b"\n".join(lines))
        self.assertEqual(done.stdout.decode(), " The code of the red door is 4821.\n")
        notes = done.stderr.decode().splitlines()
        self.assertIn("this line is not UTF-8: bad byte 0xff at offset 0", notes[0])
        self.assertIn("this line has 16777217 bytes: at most 16777210", notes[1])  # with the template 16 MiB
        self.assertRegex(notes[2], r"the prompt has \d+ tokens, but the context is \d+ tokens")
        self.assertEqual(done.returncode, 1)  # a script must know
        self.assertEqual(notes[-1], "cairn: lines that were refused: 3")

    def test_a_stop_token_ends_the_text_and_is_not_shown(self):
        stopped = self.cairn.generate("Mira", "--tokens", "5", "--logit-bias", "300=100", "--stop-token", "301",
                                      "--stop-token", "300")
        self.assertEqual((stopped["text"], stopped["token_ids"], stopped["finish_reason"]), ("", [300], "stop"))
        self.refuse("generate", "x", "--stop-token", "4096000", words=["stop_token_ids has 4096000"])

    # Output

    def run_into_full_disk(self, *arguments, stdin=b""):
        with open("/dev/full", "wb") as full:
            return subprocess.run(self.cairn.command(*arguments), input=stdin, stdout=full, stderr=subprocess.PIPE,
                                  timeout=daemons.RUN_TIMEOUT_S, check=False)

    def test_full_disk_ends_the_generation_with_an_error(self):
        for command, stdin in (("generate", b""), ("chat", b"Mira\n")):
            prompt = ["Mira", "--ignore-end"] if command == "generate" else []
            done = self.run_into_full_disk(command, *prompt, "--tokens", "20000", "--label", "full " + command,
                                           stdin=stdin)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"write to standard output: No space left on device\n", done.stderr)
            self.assertLess(self.labelled("full " + command)[0]["token_count"], 10000)

    def test_full_disk_is_an_error_of_every_command(self):
        shown = str(self.cairn.generate("Mira", "--tokens", "1")["conversation_id"])
        for arguments in (["sessions", "list"], ["sessions", "list", "--json"], ["sessions", "show", shown],
                          ["generate", "x", "--tokens", "1", "--json"], ["generate", "--help"]):
            done = self.run_into_full_disk(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, rb"\Acairn: .*No space left on device\n\Z")

    def test_reader_that_goes_ends_the_generation_without_a_word(self):
        process = self.cairn.popen("generate", "Mira", *ENDLESS, "--label", "unread")
        process.read(3)
        process.stdout.close()
        self.assertEqual(process.stderr.read(), b"")
        self.assertEqual(process.wait(daemons.STOP_TIMEOUT_S), READER_GONE)
        process.stderr.close()
        # The next generation comes to its turn only when that one has ended.
        self.cairn.generate("Mira", "--tokens", "1")
        self.assertLess(self.labelled("unread")[0]["token_count"], 10000)

    def test_reader_that_goes_ends_the_chat_without_a_word(self):
        process = self.cairn.popen("chat", "--tokens", "2000", stdin=subprocess.PIPE)
        process.stdin.write(b"Mira\n")
        process.stdin.flush()
        process.read(3)
        process.stdout.close()
        process.stdin.write(b"Mira\n" * 3)
        process.stdin.close()
        self.assertEqual(process.stderr.read(), b"")
        self.assertEqual(process.wait(daemons.STOP_TIMEOUT_S), READER_GONE)
        process.stderr.close()

    # Interruptions

    def long_text(self):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            return file.read() * 5

    def test_interrupt_while_the_prompt_is_computed_says_what_is_kept(self):
        path = self.cairn.path("long.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.long_text())
        for flags, words in (
                ([], rb" after \d+ of \d+ prompt tokens; (nothing is kept: .*|conversation (\d+) keeps the first \d+ "
                     rb"of them; go on with the rest of the prompt, without them, by cairn generate "
                     rb"--conversation \2 --socket .*; cairn sessions show \2 --socket .* shows them)"),
                (["--ephemeral"], rb"; nothing was kept, for the conversation is ephemeral")):
            process = self.cairn.popen("generate", "--file", path, "--progress", *flags)
            self.assertIn(b"reading the prompt", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            text, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertEqual((process.returncode, text), (130, b""), error)
            self.assertRegex(error.splitlines()[-1], rb"\Acairn: cancelled.*" + words + rb"\Z")

    def test_interrupt_behind_the_first_token_names_the_conversation(self):
        process = self.cairn.popen("generate", "Mira", *ENDLESS, "--label", "kept")
        process.read(10)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
        number = self.labelled("kept")[0]["conversation_id"]
        self.assertEqual(error.decode(), f"cairn: cancelled: what was generated is in conversation {number}; go on "
                                         f"with cairn generate --conversation {number} --socket {self.cairn.socket}\n")

    def test_chat_goes_on_behind_an_interrupted_first_line(self):
        process = self.cairn.popen("chat", "--tokens", "5", "--label", "chat", "--progress", stdin=subprocess.PIPE)
        process.stdin.write(self.long_text().replace("\n", " ").encode() + b"\n")
        process.stdin.flush()
        self.assertIn(b"reading ", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), b"\n")
        text, error = process.communicate(b"The code of the red door is\n", timeout=daemons.STOP_TIMEOUT_S)
        self.assertEqual(process.returncode, 0, error)
        self.assertRegex(text, rb"\S")
        self.assertRegex(error, rb"interrupted after \d+ of \d+ prompt tokens; ")
        kept = self.labelled("chat")
        self.assertEqual(len(kept), 1)
        self.assertIn(f"conversation={kept[0]['conversation_id']}:", error.decode())

    # Forks

    def test_a_fork_goes_on_as_a_conversation_of_its_own_tokens(self):
        with open(self.cairn.short_text(), encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
        question = "Q: what then?\nA:"
        ask = ("--tokens", "12", "--ignore-end")
        # Of other policies a conversation that comes in two turns may attend other tokens than one that comes whole.
        full = ("--policy", "full")

        def prefix(count):
            return "".join(lines[:count])

        whole = self.cairn.generate(prefix(len(lines)), *full, "--tokens", "40", "--ignore-end")
        source = whole["conversation_id"]
        # Before the window, within it, and at its very end; then from a fork's own and its source's tokens.
        for count in (1, len(lines) // 3, len(lines) - 2, len(lines)):
            fresh = self.cairn.generate(prefix(count) + question, *full, *ask, "--ephemeral")
            alone = self.cairn.generate(prefix(count), "--tokens", "0", "--ephemeral")
            fork = self.cairn.fork(source, alone["conversation_token_count"])
            told = self.cairn.generate(question, *ask, "--conversation", str(fork))
            self.assertEqual(told["reused_token_count"], alone["conversation_token_count"])
            self.assertEqual(told["token_ids"], fresh["token_ids"], f"{count} lines")
        earlier = self.cairn.generate(prefix(5), "--tokens", "0", "--ephemeral")["conversation_token_count"]
        fresh = self.cairn.generate(prefix(5) + question, *full, *ask, "--ephemeral")
        for parent in (fork, source):
            again = self.cairn.generate(question, *ask, "--conversation", str(self.cairn.fork(parent, earlier)))
            self.assertEqual(again["token_ids"], fresh["token_ids"])
        # What it begins with was stored when it was made.
        made = self.cairn.fork(source, earlier)
        (listed,) = [each for each in self.cairn.sessions() if each["conversation_id"] == made]
        self.assertEqual(listed["update_time"], listed["create_time"])
        # The source does not notice.
        longer = self.cairn.generate(question, *ask, "--conversation", str(source))
        self.assertEqual(longer["reused_token_count"], whole["conversation_token_count"])
        for tokens in ("0", "999999"):
            done = self.cairn.run("sessions", "fork", str(source), "--tokens", tokens)
            self.assertNotEqual(done.returncode, 0)

    # Messages

    def test_number_of_a_conversation_is_checked(self):
        for number in ("0", "-1", "abc", "", "1x", "0x3", "9223372036854775808", "1" * 300):
            for arguments in (["sessions", "delete", number], ["sessions", "show", number],
                              ["generate", "x", "--conversation=" + number], ["chat", "--conversation=" + number]):
                self.refuse(*arguments, status=2,
                            words=["a conversation is a number from 1 to 9223372036854775807; see cairn "])
        self.refuse("sessions", "delete", "9223372036854775807", words=["no conversation 9223372036854775807:"])

    def test_labels_are_shown_without_their_control_characters(self):
        label = "two\nlines\t\x1b[31mred\x7f\u0085\u202eback é"
        self.cairn.generate("Mira", "--tokens", "1", "--label", label)
        self.assertEqual(len(self.labelled(label)), 1)

        def whole_table():
            table = self.cairn.succeed("sessions", "list")
            return table if len(table.split("\n")) == len(self.cairn.sessions()) + 2 else None

        # An ephemeral conversation of an interrupted generation goes when it may.
        table = wait_until(whole_table, "a table with one line for each conversation")
        self.assertIn("  two\\nlines\\t\\u001b[31mred\\u007f\\u0085\\u202eback é\n", table)

    def test_socket_of_another_user_is_permission_denied(self):
        user = {"user": NOBODY} if os.geteuid() == 0 else {}
        mode = os.stat(self.cairn.socket).st_mode
        os.chmod(self.cairn.socket, 0)
        try:
            done = subprocess.run(self.cairn.command("generate", "x"), capture_output=True, check=False,
                                  timeout=daemons.RUN_TIMEOUT_S, **user)
        except PermissionError:
            self.skipTest(f"user {NOBODY} may not run {binary('cairn')}")
        finally:
            os.chmod(self.cairn.socket, mode)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.startswith(b"cairn: permission denied: "), done.stderr)
        self.assertIn(self.cairn.socket.encode(), done.stderr)
        self.assertNotIn(b"is it running?", done.stderr)

    def test_status_says_whether_both_daemons_serve(self):
        with Cairn() as cairn:
            cairn.generate("Mira", "--tokens", "1")
            # The turn's thread ends a moment after its answer.
            wait_until(lambda: json.loads(cairn.status("--json"))["generation_count"] == 0, "the turn's end")
            text = cairn.status()
            for line in (rf"cairn-compute-node +ready, socket {cairn.socket}",
                         r"model +retrieval-3m, context of 32768 tokens, chat template none",
                         r"generations +0 running or waiting, \d.*", r"cairn-kv-node +serves, by \w+",
                         r"store +\d.* of 64\.0 MiB used, conversations: 1"):
                self.assertRegex(text, rf"(?m)^{line}$")
            told = json.loads(cairn.status("--json"))
            self.assertTrue(told["serves"])
            self.assertEqual((told["phase"], told["store"]["conversation_count"]), ("ready", 1))
            cairn.kv.kill()
            done = cairn.run("status")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout.decode(), r"(?m)^cairn-kv-node +does not answer$")
            self.assertRegex(done.stderr.decode(), r"\Acairn: cairn-kv-node does not answer.*\n\Z")
            told = json.loads(cairn.run("status", "--json").stdout)
            self.assertEqual((told["serves"], told["store"]), (False, None))
            cairn.compute.kill()
            done = cairn.run("status")
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertRegex(done.stderr, rb"\Acairn: cannot reach cairn-compute-node .*`cairn-compute-node --model .*"
                                          rb"; cairn-kv-node, which it needs, .*serves? at \S+.*\n\Z")
        with Cairn(kv="ram") as cairn:
            text = cairn.status()
            self.assertNotIn("cairn-kv-node", text)
            self.assertRegex(text, r"(?m)^store +\d.* of 8.0 GiB used, conversations: 0$")

    def test_status_shows_what_each_generation_does(self):
        with Cairn(compute_config="generation_count_max: 1\n") as cairn:
            generate = ("generate", "Mira", "--ignore-end", "--tokens", "20000", "--label")
            busy = [cairn.popen(*generate, "the first")]

            def shown(line):
                wait_until(lambda: re.search(rf"(?m)^{line}$", cairn.status()), f"a line '{line}'")

            try:
                shown(r"  conversation 1 +decoding; has \d+ tokens, \d+ stored; \w+, [\d.]+ \w+ in memory, "
                      r"[\d.]+ \w+ read; the first")
                busy.append(cairn.popen(*generate, "the second"))
                shown(r"  new conversation +queued; the second")
                first, second = json.loads(cairn.status("--json"))["generations"]
                self.assertGreaterEqual(first["token_count"], first["stored_token_count"])
                self.assertEqual((first["conversation_id"], first["label"]), (1, "the first"))
                self.assertEqual((second["phase"], second["conversation_id"]), ("queued", 0))
                self.assertEqual(cairn.sessions()[0]["label"], "the first")
            finally:
                for process in busy:
                    process.kill()
                    process.communicate()
            wait_until(lambda: json.loads(cairn.status("--json"))["generations"] == [], "no generation")

    def test_stopped_store_is_checked_as_json(self):
        with Cairn() as cairn:
            cairn.generate("Mira", "--tokens", "1")
            cairn.stop()
            done = subprocess.run([binary("cairn-kv-util"), "verify", "--json", "--store", cairn.path("store")],
                                  capture_output=True, timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["line"], summary["findings"], summary["sessions"]), ("summary", 0, 1))

    def test_store_is_looked_for_where_the_daemon_has_it(self):
        state = self.cairn.path("state")
        done = subprocess.run([binary("cairn-kv-util"), "verify", "--help"], capture_output=True, text=True,
                              env={**os.environ, "XDG_STATE_HOME": state}, timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertIn("/var/lib/cairn" if os.geteuid() == 0 else state + "/cairn", done.stdout)

    def test_daemon_that_dies_is_named(self):
        with Cairn(kv="ram") as cairn:
            process = cairn.popen("generate", "Mira", *ENDLESS)
            process.read(3)
            cairn.compute.kill()
            _, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn(f"cairn-compute-node at {cairn.socket} went away", error.decode())


if __name__ == "__main__":
    unittest.main()
