"""What Ctrl-C and SIGTERM do: while programs run these end, and with them every call that waits for one; otherwise
KeyboardInterrupt is raised, but not while a folder is there that somebody must remove.

An exception that a signal raises in the middle of gRPC's own bookkeeping can leave a call behind that nobody ends, and
closing its channel then waits for ever; and one in the middle of making or removing a folder leaves it behind.
"""
import signal

_state = {"requested": False, "holders": []}


def install():
    """REQUIRES: the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def _handle(*_):
    _state["requested"] = True
    if not _state["holders"]:
        raise KeyboardInterrupt
    for holder in _state["holders"]:
        holder.terminate()


def requested():
    """-> whether one came: then errors of calls are no news."""
    return _state["requested"]


def check():
    """Raises KeyboardInterrupt if one came; for where no call is under way."""
    if requested():
        raise KeyboardInterrupt


def started(holder):
    """Until ended() an interrupt calls its terminate() and raises nothing: holders call check() when they can."""
    _state["holders"].append(holder)


def ended(holder):
    """Whether it was started or not."""
    _state["holders"] = [each for each in _state["holders"] if each is not holder]
