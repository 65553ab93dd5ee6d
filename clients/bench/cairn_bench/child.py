"""Runs programs that are no daemons, cairn-bench itself too; an interrupt leaves none behind."""
import contextlib
import os
import signal
import subprocess
import sys

from . import interrupts

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cairn-bench")


class _Child:
    """A process that an interrupt ends, at whatever moment it comes. end: a function of the process that does so."""

    def __init__(self, end):
        self.process, self.end = None, end

    def run(self, command, wait, **streams):
        """-> what wait() of the process gives."""
        interrupts.started(self)
        try:
            # No Ctrl-C of the terminal reaches it.
            with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], start_new_session=True,
                                  **streams) as self.process:
                if interrupts.requested():
                    self.terminate()
                try:
                    return wait(self.process)
                except BaseException:
                    self.terminate()
                    raise
        finally:
            interrupts.ended(self)
            interrupts.check()

    def terminate(self):
        if self.process and self.process.returncode is None:
            self.end(self.process)


def _kill_session(process):
    """With what it started: that would go on, and hold the pipes that are read here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_bench(arguments, path):
    """Runs cairn-bench -> its exit status; its tables go into the file, its progress where ours goes.

    An interrupt ends it in order: what it has measured is kept. REQUIRES: the main thread, as for daemons.
    """
    with open(path, "w", encoding="utf-8") as tables:
        return _Child(subprocess.Popen.terminate).run([sys.executable, PROGRAM, *arguments], subprocess.Popen.wait,
                                                      stdin=subprocess.DEVNULL, stdout=tables)


def run_program(command, text="", timeout=None):
    """Runs a program on a text -> subprocess.CompletedProcess. Raises what subprocess.run does.

    It does not outlive an interrupt or this process. REQUIRES: the main thread, as for daemons.
    """
    def communicate(process):
        printed, said = process.communicate(text, timeout)
        return subprocess.CompletedProcess(command, process.returncode, printed, said)
    return _Child(_kill_session).run(command, communicate, encoding="utf-8", errors="replace", stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
