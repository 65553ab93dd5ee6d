"""cairn-bench measure --quick over real daemons, and the pages that come of it: their form, not their figures.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/bench_report_test.py
"""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import daemons
from daemons import wait_until

PROGRAM = os.path.join(daemons.REPOSITORY, "clients", "bench", "cairn-bench")
# Started by a shell in the background, a program ignores Ctrl-C unless it is told not to.
PYTHON = ("env", "--default-signal=INT", "/usr/bin/python3")
PAGES = {"README.md": ("## The machine", "aims were missed"),
         "answers.md": ("| `dynakv` more than `full`, in points |", "--policy full,dynakv --seed 1,2"),
         "speed.md": ("| eMMC, modelled | `full` |", "| the machine's own disk | `full` |", "memory was read at"),
         "memory-and-flash.md": ("| all keys and values |", "| clusters that were split |")}


class BenchReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cairn-bench-test-"))
        self.temporary, self.out, self.pages = (os.path.join(self.folder, name) for name in ("tmp", "out", "pages"))
        for folder in (self.temporary, self.pages):
            os.mkdir(folder)

    def tearDown(self):
        self.assertEqual(os.listdir(self.temporary), [], "files that stayed behind")

    def start(self, *arguments):
        return subprocess.Popen([*PYTHON, PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**os.environ, "TMPDIR": self.temporary}, start_new_session=True)

    def finish(self, process, status=0):
        """-> what it said on stderr."""
        said = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
        self.assertEqual(process.returncode, status, said)
        self.assertNotIn("Traceback", said[1])
        return said[1]

    def measure(self):
        return self.start("measure", self.out, "--quick", "--pages", self.pages, "--build",
                          os.path.dirname(daemons.BIN_DIR))

    def parts(self):
        data = os.path.join(self.out, "data")
        return os.listdir(data) if os.path.isdir(data) else []

    def test_one_command_measures_and_writes_the_pages(self):
        process = self.measure()
        wait_until(self.parts, "the first part")
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        self.assertIn("interrupted", self.finish(process, status=130))
        there = len(self.parts())
        said = self.finish(self.measure())
        self.assertNotIn("answers-prefilled: about", said)
        self.assertEqual(said.count(" left\n"), len(self.parts()) - there)
        # Whatever is there is not measured again.
        self.assertNotIn(" left\n", self.finish(self.measure()))
        for name, texts in PAGES.items():
            with open(os.path.join(self.pages, name), encoding="utf-8") as file:
                page = " ".join(file.read().split())
            for text in ("`--quick`", *texts):
                self.assertIn(text, page, name)
        self.finish(self.start("report", self.pages, "--check"))
        with open(os.path.join(self.pages, "answers.md"), "a", encoding="utf-8") as file:
            file.write("And 99 % more.\n")
        self.assertIn("answers.md is not what", self.finish(self.start("report", self.pages, "--check"), status=1))


if __name__ == "__main__":
    try:
        import grpc  # noqa: F401  pylint: disable=unused-import
    except ImportError as error:
        sys.exit(f"{error}: deploy/install_packages.sh")
    unittest.main()
