"""A program at a pseudo-terminal, for the integration tests. Standard library only."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

TIMEOUT_S = 60
COLUMNS = 240  # no test's folder, whose length is the machine's, wraps a line in a word that another test waits for
PIECE_BYTES = 4096


def read_piece(fd, timeout_s):
    """-> what a terminal shows next, b"" where nothing came in time, None where nobody has its other end any more."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
    except OSError:
        return None


def read_to_end(fd):
    """-> all that is left to show. The kernel hands over what was written in pieces, some behind the writer's end."""
    shown = b""
    end = time.monotonic() + TIMEOUT_S
    while (piece := read_piece(fd, 0.1)) is not None:
        shown += piece
        assert time.monotonic() < end, f"somebody still has the terminal open; shown: {shown[-500:]!r}"
    return shown


def text_of(shown):
    return shown.decode(errors="replace").replace("\r\n", "\n")


class Terminal:
    """Runs a command with a terminal as its standard streams and as its controlling terminal."""

    def __init__(self, command, env, rows=24, columns=COLUMNS):
        self._bytes = b""  # all that was written to it so far
        self._taken = 0  # of that, what wait_for has found
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(command[0], command, {**env, "TERM": "xterm"})
            finally:
                os._exit(127)  # pylint: disable=protected-access
        os.set_blocking(self.fd, False)
        self.resize(rows, columns)
        self.found = termios.tcgetattr(self.fd)
        self.status = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def shown(self):
        return text_of(self._bytes)

    def _read(self, timeout_s):
        self._bytes += read_piece(self.fd, timeout_s) or b""

    def send(self, keys):
        """As fast as the terminal takes them."""
        end = time.monotonic() + TIMEOUT_S
        while keys:
            assert time.monotonic() < end, f"{len(keys)} keys were not taken; shown: {self.shown[-500:]!r}"
            try:
                keys = keys[os.write(self.fd, keys[:PIECE_BYTES]):]
            except BlockingIOError:
                select.select([], [self.fd], [], 0.1)
            self._read(0)

    def wait_for(self, pattern):
        """Until something is shown behind what was waited for before -> the match."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            found = re.compile(pattern).search(self.shown, self._taken)
            if found:
                self._taken = found.end()
                return found
            if time.monotonic() > end:
                raise AssertionError(f"{pattern!r} was not shown; this was: {self.shown[self._taken:][-2000:]!r}")
            self._read(0.1)

    def settings(self):
        """-> what of the terminal's settings programs change."""
        iflag, oflag, cflag, lflag = termios.tcgetattr(self.fd)[:4]
        return iflag, oflag, cflag, lflag

    def found_settings(self):
        return tuple(self.found[:4])

    def wait(self):
        """-> the exit status, or minus the signal's number."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._bytes += read_to_end(self.fd)
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
            assert time.monotonic() < end, f"the program has not ended; shown: {self.shown[-500:]!r}"
            self._read(0.05)
