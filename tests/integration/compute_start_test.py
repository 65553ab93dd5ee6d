"""What prevents the compute node from starting, what its settings look like, and where daemons log to.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/compute_start_test.py
"""
import fcntl
import os
import pathlib
import pty
import socket
import stat
import subprocess
import tempfile
import unittest

import daemons
from daemons import Cairn, binary, wait_until
from terminal import read_to_end, text_of

NOBODY = 65534


class StartTest(unittest.TestCase):
    """What prevents the compute node from starting."""

    def start(self, *arguments, timeout=daemons.START_TIMEOUT_S):
        return subprocess.run([binary("cairn-compute-node"), *arguments], capture_output=True, timeout=timeout,
                              check=False)

    def refuse(self, *arguments, words, status=2):
        done = self.start(*arguments)
        last = done.stderr.decode().splitlines()[-1]
        self.assertEqual(done.returncode, status, last)
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
            self.refuse("--model", cairn.path("none.gguf"), "--kv", "ram", *socket, status=1,
                        words=["none.gguf"])
            self.refuse("--model", cairn.path("kv.conf"), "--kv", "ram", *socket, status=1,
                        words=["kv.conf"])
            self.refuse("--model", cairn.model, "--kv", "ram", "--socket", cairn.socket, status=1,
                        words=[cairn.socket])
            self.refuse("--model", "x", "--log-level", "loud", words=["log_level is 'loud'", "trace, debug"])
            self.refuse("--model", cairn.model, "--kv", "ram", "--socket", "/tmp/" + "x" * 200, words=["bytes"])

    def test_a_kv_node_that_is_starting_is_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "compute.conf")
            socket = os.path.join(folder, "kv.sock")
            with open(config, "w", encoding="utf-8") as file:
                file.write(f'kv_wait_seconds: 0\nkv_socket_path: "{socket}"\n'
                           f'socket_path: "{folder}/compute.sock"\nmodel_path: "{daemons.MODEL}"\n')
            with open(socket + ".starting", "w", encoding="utf-8") as mark:
                fcntl.flock(mark, fcntl.LOCK_EX)
                with subprocess.Popen([binary("cairn-compute-node"), "--config", config, "--log", "stderr"],
                                      stderr=subprocess.PIPE, text=True) as node:
                    lines = iter(node.stderr.readline, "")
                    self.assertTrue(any("cairn-kv-node is starting" in line for line in lines))
                    fcntl.flock(mark, fcntl.LOCK_UN)
                    self.assertTrue(any("cannot reach cairn-kv-node" in line for line in lines))
                    self.assertEqual(node.wait(daemons.START_TIMEOUT_S), 1)

    def test_bad_configuration_names_the_line(self):
        with Cairn() as cairn:
            path = cairn.path("bad.conf")
            for text, words in (("threads: 2\nthreds: 3\n", [":2:", "there is no key threds: did you mean threads?"]),
                                ('policy: "full"\nthreads: 99999\n', [path + ":2: threads is 99999", "0 to"]),
                                ("threads: 1\nthreads: 2\n", [":2:"]), ('kv_format: "f8"\n', ["f8"]),
                                ("threads: many\n", [":1:10:", "integer"]),
                                ('policy: "nope"\n', ["policy is 'nope'", "full"]),
                                ("select_percent: 0\n", ["select_percent is 0"]),
                                ("select_tokens_min: 500\nselect_tokens_max: 400\n",
                                 [path + ":1: select_tokens_min is 500", "select_tokens_max, which is 400"]),
                                ("select_tokens_min: 3\n", ["select_tokens_min is 3"]),
                                ("experiment {\n cluster_target_entries: 0\n}\n",
                                 [path + ":2: cluster_target_entries is 0"]),
                                ("experiment { estimate_percent: 101 }\n", ["estimate_percent is 101"]),
                                ("experiment { clustering_seed: -1 }\n", [":1:", "not below 0"]),
                                ("select_ahead: false\n", [":1:1: ", "write experiment { select_ahead: ... }"])):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.refuse("--model", cairn.model, "--config", path, words=words)

    def test_kv_node_that_does_not_come_is_named(self):
        with Cairn() as cairn:
            path = cairn.path("wait.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("kv_wait_seconds: 1\n")
            self.refuse("--config", path, "--model", cairn.model, "--socket", cairn.path("o.sock"), "--kv-socket",
                        cairn.path("no.sock"), status=1, words=[cairn.path("no.sock"), "--kv ram", "after 1 s"])

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


class LogTest(unittest.TestCase):
    """Where a daemon logs to that was started by hand, with a terminal as its standard error."""

    def run_on_a_terminal(self, name, *arguments, until, **options):
        """Starts the daemon, waits until until() is true, stops it -> (exit status, what the terminal shows)."""
        terminal, end = pty.openpty()
        try:
            environment = {**os.environ, "HOME": self.folder, "XDG_STATE_HOME": self.folder}
            try:
                process = subprocess.Popen([binary(name), *arguments], stdin=subprocess.DEVNULL, stdout=end,
                                           stderr=end, env=environment, **options)
            finally:
                os.close(end)
            try:
                wait_until(lambda: until() or process.poll() is not None, f"start of {name}")
                process.terminate()
                status = process.wait(daemons.STOP_TIMEOUT_S)
            finally:
                process.kill()
            return status, text_of(read_to_end(terminal))
        finally:
            os.close(terminal)

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cairn-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def test_a_terminal_is_told_where_the_log_is_and_when_the_daemon_is_ready(self):
        for name, arguments in (
                ("cairn-kv-node", ["--data-dir", f"{self.folder}/store", "--socket", f"{self.folder}/kv.sock",
                                   "--config", self.small_store()]),
                ("cairn-compute-node", ["--model", daemons.MODEL, "--kv", "ram", "--socket",
                                        f"{self.folder}/c.sock"])):
            log = f"{self.folder}/{name}.log"
            status, shown = self.run_on_a_terminal(name, *arguments, "--log", log, until=self.is_ready(log))
            self.assertEqual((status, shown), (0, f"{name}: the log is {log}\n{name}: ready\n"))
            with open(log, encoding="utf-8") as file:
                self.assertRegex(file.read(), rf"(?s)info {name}: ready .*info {name}: stopped\n\Z")

    def small_store(self):
        path = f"{self.folder}/kv.conf"
        with open(path, "w", encoding="utf-8") as file:
            file.write("extent_file_bytes: 1048576\nprefill_extent_file: false\n")
        return path

    @staticmethod
    def is_ready(log):
        def ready():
            if not os.path.exists(log):
                return False
            with open(log, encoding="utf-8") as file:
                return ": ready " in file.read()
        return ready

    def who_has(self, *paths):
        """-> arguments for a process of a user who is not root, whose other places are not a test's; has `paths`."""
        if os.geteuid() != 0:
            return {}
        for folder in pathlib.Path(self.folder).parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                self.skipTest(f"user {NOBODY} may not pass through {folder}")
        for path in paths:
            os.chown(path, NOBODY, -1)
        return {"user": NOBODY}

    def run_without_a_flag(self, until):
        """As run_on_a_terminal. Root's log is elsewhere, and what a test would find there is somebody's."""
        user = self.who_has(self.folder)
        try:
            return self.run_on_a_terminal("cairn-compute-node", "--model", daemons.MODEL, "--kv", "ram", "--socket",
                                          f"{self.folder}/c.sock", until=until, **user)
        except PermissionError:
            return self.skipTest(f"user {NOBODY} may not run {binary('cairn-compute-node')}")

    def test_without_a_flag_the_log_is_in_the_users_state(self):
        log = f"{self.folder}/cairn/cairn-compute-node.log"
        self.assertEqual(self.run_without_a_flag(self.is_ready(log)),
                         (0, f"cairn-compute-node: the log is {log}\ncairn-compute-node: ready\n"))

    def test_a_terminal_is_told_what_a_start_waits_for(self):
        socket = f"{self.folder}/kv.sock"
        log = f"{self.folder}/c.log"
        config = f"{self.folder}/c.conf"
        with open(config, "w", encoding="utf-8") as file:
            file.write("kv_wait_seconds: 1\n")
        status, shown = self.run_on_a_terminal(
            "cairn-compute-node", "--config", config, "--model", daemons.MODEL, "--kv-socket", socket, "--socket",
            f"{self.folder}/c.sock", "--log", log, until=lambda: False)
        self.assertEqual(status, 1)
        self.assertRegex(shown, rf"\n[^\n]*warning cairn-compute-node: waiting for cairn-kv-node socket={socket} "
                                r"seconds_max=1\ncairn-compute-node cannot start: ")

    def test_a_kv_node_of_another_environment_is_named(self):
        state, config = (f"{self.folder}/{name}" for name in ("state", "c.conf"))
        os.makedirs(f"{state}/cairn")
        with open(config, "w", encoding="utf-8") as file:
            file.write("kv_wait_seconds: 0\n")
        user = self.who_has(self.folder, state, f"{state}/cairn")
        environment = {**os.environ, "HOME": self.folder, "XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": self.folder}
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"{state}/cairn/kv.sock")
            os.chmod(f"{state}/cairn/kv.sock", 0o777)
            other.listen()
            try:
                done = subprocess.run([binary("cairn-compute-node"), "--config", config, "--model", daemons.MODEL,
                                       "--log", "stderr"], capture_output=True, check=False, env=environment,
                                      timeout=daemons.START_TIMEOUT_S, **user)
            except PermissionError:
                self.skipTest(f"user {NOBODY} may not run {binary('cairn-compute-node')}")
        last = done.stderr.decode().splitlines()[-1]
        self.assertRegex(last, rf"\Acairn-compute-node cannot start: cannot reach cairn-kv-node at {self.folder}/.*; "
                               rf"there is one at {state}/cairn/kv.sock: give it by --kv-socket, or set")

    def test_who_looks_on_is_told_that_the_kv_node_is_starting(self):
        kv_socket, socket, log = (f"{self.folder}/{name}" for name in ("kv.sock", "c.sock", "c.log"))

        def is_told():
            done = subprocess.run([binary("cairn"), "status", "--socket", socket], capture_output=True, check=False)
            return f"loading: waiting for cairn-kv-node at {kv_socket}, which is starting".encode() in done.stderr

        with open(kv_socket + ".starting", "w", encoding="utf-8") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            told = self.run_on_a_terminal("cairn-compute-node", "--model", daemons.MODEL, "--kv-socket", kv_socket,
                                          "--socket", socket, "--log", log, until=is_told)
        self.assertEqual(told, (0, f"cairn-compute-node: the log is {log}\ncairn-compute-node: cairn-kv-node is "
                                   "starting: waiting as long as that takes\n"))

    def test_file_that_nobody_asked_for_and_cannot_be_written_is_no_reason_not_to_start(self):
        with open(f"{self.folder}/cairn", "wb"):  # in place of the folder
            pass
        status, shown = self.run_without_a_flag(lambda: os.path.exists(f"{self.folder}/c.sock"))
        self.assertEqual(status, 0)
        self.assertRegex(shown, r"\Acairn-compute-node: .*(directory of log_path).*: the log is shown here\n")

    def test_terminal_shows_the_log_where_it_is_asked_for(self):
        ready = f"{self.folder}/c.sock"
        status, shown = self.run_on_a_terminal("cairn-compute-node", "--model", daemons.MODEL, "--kv", "ram",
                                               "--socket", ready, "--log", "stderr",
                                               until=lambda: os.path.exists(ready))
        self.assertEqual(status, 0)
        self.assertNotIn("the log is", shown)
        self.assertIn("info cairn-compute-node: ", shown)


if __name__ == "__main__":
    unittest.main()
