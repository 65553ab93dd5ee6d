"""Starts and stops Cairn's daemons for a measurement, and measures their memory.

Memory is Pss_Anon + Pss_Shmem of /proc/PID/smaps_rollup: what the process itself holds, without file pages.
Daemons are started from the main thread: the kernel stops them with the thread that started them.
"""
import collections
import contextlib
import os
import pathlib
import queue
import signal
import socket
import subprocess
import threading

from . import interrupts
from .folders import temporary_folder

START_TIMEOUT_S = 600  # a first start packs the weights of a large model
STOP_TIMEOUT_S = 60
LOG_LINES_MAX = 200
LOG_LINES_SHOWN = 10
MEMORY_SAMPLE_S = 0.02
# What the modelled device of the KV node calls the profiles.
PROFILES = {"nvme": "none", "ufs4": "ufs4.0", "ufs31": "ufs3.1", "emmc": "emmc"}


class DaemonError(Exception):
    """A daemon did not start, or ended before it was told to; the message has the daemon's own."""


class Daemon:
    """A process that logs a line with `ready` when it serves; the constructor waits for it.

    on_end is called, in a thread of its own, when the process ends or closes its log.
    """

    def __init__(self, command, on_end=None):
        self.name, self.on_end = os.path.basename(command[0]), on_end
        self.lines, self.ready = collections.deque(maxlen=LOG_LINES_MAX), queue.Queue()
        self.ended = threading.Event()
        # No Ctrl-C of the terminal reaches it, so it outlives its client; and nothing outlives this process.
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stderr=subprocess.PIPE,
                                        text=True, errors="replace", start_new_session=True)
        interrupts.started(self)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            interrupts.check()
            if not self._wait_ready():
                raise DaemonError(self.why_ended())
        except BaseException:
            self.stop()
            raise

    def _read(self):
        with self.process.stderr as log:
            for line in log:
                self.lines.append(line)
                if ": ready " in line:
                    self.ready.put(True)
        self.ready.put(False)
        self.ended.set()
        if self.on_end:
            self.on_end()

    def _wait_ready(self):
        try:
            return self.ready.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            raise DaemonError(f"{self.name} was not ready after {START_TIMEOUT_S} s:\n{self.log()}") from None

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        """-> the last lines that it logged."""
        return "".join(list(self.lines)[-LOG_LINES_SHOWN:]).rstrip()

    def why_ended(self):
        """-> a message for a process that has ended or is about to."""
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its log and did not end:\n{self.log()}"
        self.reader.join(STOP_TIMEOUT_S)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{self.name} {how}:\n{self.log()}"

    def terminate(self):
        """As systemd would; does not wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Kills it when its end takes too long."""
        self.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        interrupts.ended(self)
        self.reader.join(STOP_TIMEOUT_S)


class DaemonPair:
    """A KV node over a new store, and a compute node that uses it; for a `with` statement.

    kv and compute: settings of their configuration files, beside what is set here. Texts are quoted. on_end is called
    when one of them ends by itself. The store lies in a temporary folder of store_dir; sockets, whose paths must be
    short, in one of the temporary directory. Both are removed at the end. store: a folder for the store instead, which
    stays.
    """

    def __init__(self, bin_dir, model, kv=None, compute=None, store_dir=None, on_end=None, store=None):
        self.daemons, self.stopping, self.ended = [], False, threading.Event()
        self.on_end = on_end
        with contextlib.ExitStack() as folders:
            base = pathlib.Path(folders.enter_context(temporary_folder("cairn-bench-")))
            self.socket, self.kv_socket = f"{base}/c.sock", f"{base}/kv.sock"
            store = store or folders.enter_context(temporary_store(store_dir))
            folders.callback(self._stop_daemons)
            self._start(bin_dir, "cairn-kv-node", base / "kv.conf", {
                "data_dir": f"{store}/store", "socket_path": self.kv_socket, **(kv or {})})
            self._start(bin_dir, "cairn-compute-node", base / "compute.conf", {
                "model_path": os.path.abspath(model), "socket_path": self.socket, "kv_socket_path": self.kv_socket,
                **(compute or {})})
            self.folders = folders.pop_all()

    def _start(self, bin_dir, name, config, settings):
        config.write_text(_settings(settings), encoding="utf-8")
        self.daemons.append(Daemon([f"{bin_dir}/{name}", "--config", str(config)], on_end=self._ended))

    def _ended(self):
        self.ended.set()
        if not self.stopping and self.on_end:
            self.on_end()

    def pids(self):
        return [daemon.pid for daemon in self.daemons]

    def check(self, wait_s=0):
        """Raises DaemonError if one has ended, the KV node first: the other may have ended because of it.

        wait_s: for one that is about to, as after a call that lost its connection.
        """
        self.ended.wait(wait_s)
        for daemon in self.daemons:
            if daemon.ended.is_set():
                raise DaemonError(daemon.why_ended())

    def _stop_daemons(self):
        self.stopping = True
        for daemon in reversed(self.daemons):
            daemon.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folders.close()


def temporary_store(store_dir):
    """For a `with` statement: a folder for a store -> its path; store_dir: None: where temporary folders lie."""
    return temporary_folder("cairn-bench-store-", store_dir)


def _settings(settings):
    """-> the lines of a configuration file."""
    return "".join(f"{key}: {_setting(value)}\n" for key, value in settings.items())


def _setting(value):
    """-> a value in protobuf's text format; a dict is a group of settings."""
    if isinstance(value, dict):
        return "{\n" + _settings(value) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def memory_bytes(pid):
    total = 0
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


class MemoryPeak:
    """Samples the memory of processes in a thread of its own until it is closed, and at least once."""

    def __init__(self, pids):
        self.pids, self.peaks = pids, [0] * len(pids)
        self.total, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        last = False
        while not last:
            last = self.done.wait(MEMORY_SAMPLE_S)
            try:
                now = [memory_bytes(pid) for pid in self.pids]
            except OSError:
                return  # one has ended: what is called next says why
            self.peaks = [max(a, b) for a, b in zip(self.peaks, now)]
            self.total = max(self.total, sum(now))

    def close(self):
        self.done.set()
        self.thread.join()


def handshake(path):
    """The token that a socket's handshake gives, or "" where there is no such socket."""
    if not os.path.exists(path):
        return ""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return connection.makefile().readline().strip()
