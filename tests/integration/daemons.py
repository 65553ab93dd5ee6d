"""Starts cairn-kv-node and cairn-compute-node in a folder of their own, for the integration tests.

Standard library only. CAIRN_BIN_DIR names the folder of the binaries. CAIRN_TEST_KV_CONFIG: lines of the KV
node's configuration, with "," between them, for what a test does not set itself.
"""
import json
import os
import signal
import struct
import subprocess
import tempfile
import time
import unittest

BIN_DIR = os.environ["CAIRN_BIN_DIR"]
KV_CONFIG = [line.strip() for line in os.environ.get("CAIRN_TEST_KV_CONFIG", "").split(",") if line.strip()]
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(REPOSITORY, "deploy", "models", "retrieval-3m-f16.gguf")
MODEL_END_TOKEN = 1023  # "<|endoftext|>"
DEMO_TEXT = os.path.join(REPOSITORY, "deploy", "models", "demo-4k.txt")
START_TIMEOUT_S = 180  # a disk that other tests keep busy takes long
STOP_TIMEOUT_S = 30
RUN_TIMEOUT_S = 240
POLL_S = 0.01


def binary(name):
    return os.path.join(BIN_DIR, name)


def write_model_with_template(path, template):
    """A copy of the model whose file has this chat template: one more key in front of the others."""
    with open(MODEL, "rb") as file:
        model = file.read()
    version, tensor_count, key_count = struct.unpack_from("<IQQ", model, 4)
    key = b"tokenizer.chat_template"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)  # 8: a string
    # What is behind the metadata stays aligned.
    text = template.encode() + b" " * (-(len(entry) + 8 + len(template.encode())) % 32)
    entry += struct.pack("<Q", len(text)) + text
    with open(path, "wb") as file:
        file.write(model[:4] + struct.pack("<IQQ", version, tensor_count, key_count + 1) + entry + model[24:])


def wait_until(condition, what, timeout_s=START_TIMEOUT_S):
    """Polls: what is waited for happens in another process."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {timeout_s} s")
        time.sleep(POLL_S)


class Running(subprocess.Popen):
    """A program whose output is read piece by piece. Nothing is read ahead: communicate(), which looks at no buffer of
    Python's, would lose it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, bufsize=0, **options)

    def read(self, count):
        """-> so many bytes of standard output; fewer at its end."""
        got = b""
        while len(got) < count and (more := self.stdout.read(count - len(got))):
            got += more
        return got


class Daemon:
    """One daemon process; it can be started again after it ended."""

    def __init__(self, name, arguments, log_path):
        self.command = [binary(name), *arguments]
        self.log_path = log_path
        self.process = None

    def start(self, wait=True):
        log_start = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        if wait:
            wait_until(lambda: self._is_ready(log_start), f"start of {self.command[0]}")

    def _is_ready(self, log_start):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.command[0]} ended with {self.process.returncode}:\n{self.log()}")
        with open(self.log_path, "rb") as log:
            log.seek(log_start)
            return b": ready " in log.read()

    def stop(self):
        """As systemd would; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self):
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def hang(self):
        """It does nothing until go_on. Its threads go on until one of them has taken the signal: that is waited for."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()


class SharedCairnTest(unittest.TestCase):
    """A case whose tests share one pair of daemons, which must have stopped well at the end."""
    EXTENT_FILE_BYTES = 256 << 20

    @classmethod
    def setUpClass(cls):
        cls.cairn = Cairn(extent_file_bytes=cls.EXTENT_FILE_BYTES)
        cls.cairn.start()

    @classmethod
    def tearDownClass(cls):
        statuses = cls.cairn.stop()
        log = cls.cairn.compute.log()
        cls.cairn.__exit__(None, None, None)
        assert statuses == [0, 0], (statuses, log)


class Cairn:
    """Both daemons over one store, and the command line that talks to them."""

    def __init__(self, model=MODEL, kv="node", compute_config="", kv_config="", extent_file_bytes=64 << 20):
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-test-")
        self.socket = self.path("c.sock")
        self.kv_socket = self.path("kv.sock")
        self.model = model
        for line in KV_CONFIG:
            if line.split(":")[0] not in kv_config:
                kv_config += line + "\n"
        self._write("kv.conf", f'data_dir: "{self.path("store")}"\nsocket_path: "{self.kv_socket}"\n'
                               f"extent_file_bytes: {extent_file_bytes}\nprefill_extent_file: false\n{kv_config}")
        self.kv_place = kv
        self.write_compute_config(compute_config)
        self.kv = Daemon("cairn-kv-node", ["--config", self.path("kv.conf")], self.path("kv.log"))
        self.compute = Daemon("cairn-compute-node", ["--config", self.path("compute.conf")],
                              self.path("compute.log"))

    def write_compute_config(self, lines):
        """Read at the compute node's next start."""
        self._write("compute.conf", f'model_path: "{self.model}"\nsocket_path: "{self.socket}"\n'
                                    f'kv_socket_path: "{self.kv_socket}"\n'
                                    f'kv: "{self.kv_place}"\n{self._kv_config()}{lines}')

    def _kv_config(self):
        return f'kv_config_path: "{self.path("kv.conf")}"\n' if self.kv_place == "embedded" else ""

    @property
    def uses_kv_node(self):
        return self.kv_place == "node"

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def short_text(self):
        """-> a file with the quarter of DEMO_TEXT in which the answer is, for those to whom its length is nothing."""
        with open(DEMO_TEXT, encoding="utf-8") as file:
            self._write("short.txt", "".join(file.readlines()[18:26]))
        return self.path("short.txt")

    def _write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def __enter__(self):
        self.start()
        return self

    def start(self):
        if self.uses_kv_node:
            self.kv.start()
        self.compute.start()

    def stop(self):
        """Stops both in order; returns their exit statuses."""
        statuses = [self.compute.stop()]
        if self.uses_kv_node:
            statuses.append(self.kv.stop())
        return statuses

    def __exit__(self, error_type, error, traceback):
        if error_type is not None:
            for daemon in (self.compute, self.kv):
                if daemon.process is not None:
                    print(f"---- log of {daemon.command[0]}\n{daemon.log()[-6000:]}")
        for daemon in (self.compute, self.kv):
            if daemon.running():
                daemon.kill()
        self.folder.cleanup()

    def command(self, *arguments):
        return [binary("cairn"), *arguments, "--socket", self.socket]

    def popen(self, *arguments, **options):
        return Running(self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def run(self, *arguments, stdin=b""):
        return subprocess.run(self.command(*arguments), input=stdin, capture_output=True, timeout=RUN_TIMEOUT_S,
                              check=False)

    def succeed(self, *arguments, stdin=b""):
        done = self.run(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout.decode()

    def status(self, *arguments):
        """-> what `cairn status` prints when both daemons answer in time, which on a busy machine takes some tries."""
        def answered():
            done = self.run("status", *arguments)
            return done.stdout.decode() if done.returncode == 0 else None
        return wait_until(answered, "an answer of both daemons")

    def generate(self, *arguments):
        """-> the JSON result of `cairn generate`."""
        return json.loads(self.succeed("generate", "--json", *arguments))

    def fork(self, conversation, token_count):
        """-> the id of a new conversation with the first tokens of this one."""
        fork = self.succeed("sessions", "fork", str(conversation), "--tokens", str(token_count), "--json")
        return json.loads(fork)["conversation_id"]

    def sessions(self):
        return json.loads(self.succeed("sessions", "list", "--json"))
