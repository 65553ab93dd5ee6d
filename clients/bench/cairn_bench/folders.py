"""Makes folders that last as long as a block; an interrupt leaves none behind."""
import contextlib
import tempfile

from . import interrupts


class _Folder:
    """While it is there, an interrupt waits for the next interrupts.check()."""

    def terminate(self):
        pass


@contextlib.contextmanager
def temporary_folder(prefix, parent=None):
    """For a `with` statement: a new folder -> its path. parent: None: where such folders lie."""
    folder = _Folder()
    interrupts.started(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as path:
            yield path
    finally:
        interrupts.ended(folder)
    interrupts.check()
