"""What Ctrl-C and SIGTERM do: while daemons run these end, and with them every call that waits for one; otherwise
KeyboardInterrupt is raised.

An exception that a signal raises in the middle of gRPC's own bookkeeping can leave a call behind that nobody ends, and
closing its channel then waits for ever.
"""
import signal

_state = {"requested": False, "daemons": []}


def install():
    """REQUIRES: the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def _handle(*_):
    _state["requested"] = True
    if not _state["daemons"]:
        raise KeyboardInterrupt
    for daemon in _state["daemons"]:
        daemon.terminate()


def requested():
    """-> whether one came: then errors of calls are no news."""
    return _state["requested"]


def check():
    """Raises KeyboardInterrupt if one came; for where no call is under way."""
    if requested():
        raise KeyboardInterrupt


def started(daemon):
    """Its terminate() is called by an interrupt until ended()."""
    _state["daemons"].append(daemon)


def ended(daemon):
    """Whether it was started or not."""
    _state["daemons"] = [each for each in _state["daemons"] if each is not daemon]
