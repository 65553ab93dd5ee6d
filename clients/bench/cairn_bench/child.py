"""Runs programs that are no daemons, cairn-bench itself too; an interrupt leaves none behind."""
import contextlib
import os
import signal
import subprocess
import sys

from . import interrupts

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cairn-bench")


class _Child:
    """A process that an interrupt ends, with those that it started, at whatever moment it comes."""

    def __init__(self):
        self.process = None

    def run(self, command, text, timeout):
        # No Ctrl-C of the terminal reaches it.
        with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], encoding="utf-8", errors="replace",
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as self.process:
            if interrupts.requested():
                self.terminate()
            try:
                printed, said = self.process.communicate(text, timeout)
            except BaseException:
                self.terminate()
                raise
            return subprocess.CompletedProcess(command, self.process.returncode, printed, said)

    def terminate(self):
        # The session's group: one that a script started would go on, and hold the pipes that are read here.
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class _Bench:
    """A cairn-bench of its own, that an interrupt ends in order: what it has measured is kept."""

    def __init__(self):
        self.process = None

    def run(self, arguments, path):
        with open(path, "w", encoding="utf-8") as tables, subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", sys.executable, PROGRAM, *arguments], stdin=subprocess.DEVNULL,
                stdout=tables, start_new_session=True) as self.process:
            if interrupts.requested():
                self.terminate()
            return self.process.wait()

    def terminate(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()


def run_bench(arguments, path):
    """Runs cairn-bench -> its exit status; its tables go into the file, its progress where ours goes.

    REQUIRES: the main thread, as for daemons.
    """
    bench = _Bench()
    interrupts.started(bench)
    try:
        return bench.run(arguments, path)
    finally:
        interrupts.ended(bench)
        interrupts.check()


def run_program(command, text="", timeout=None):
    """Runs a program on a text -> subprocess.CompletedProcess. Raises what subprocess.run does.

    It does not outlive an interrupt or this process. REQUIRES: the main thread, as for daemons.
    """
    child = _Child()
    interrupts.started(child)
    try:
        done = child.run(command, text, timeout)
    finally:
        interrupts.ended(child)
    interrupts.check()
    return done
