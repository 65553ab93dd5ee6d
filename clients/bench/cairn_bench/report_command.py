"""`cairn-bench report`: the pages of docs/results, from results that are kept beside them."""
import argparse
import difflib
import itertools
import os
import sys

from . import measure_plan, slim
from .client import REPOSITORY
from .options import UsageError, progress
from .report_data import load_folder
from .report_text import pages
from .result_file import ResultsError

PAGES_FOLDER = os.path.join(REPOSITORY, "docs", "results")
TEMPLATE = "templates.txt"
DIFFERENCE_LINES_MAX = 20

DESCRIPTION = """\
Writes the pages of a folder from the results in its `data`, which `cairn-bench measure` or --slim put there, and from
its templates.txt (or that of docs/results). All results must be of one build and one machine.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("report", help="pages with tables of results", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench report docs/results --check"
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="default docs/results")
    add("--check", action="store_true", help="write nothing; fail if a page is not what the results give")
    add("--slim", nargs=2, metavar=("IN", "OUT"),
        help="only put into OUT what pages need of IN, a JSON file of tasks, speed or compare")
    add("--set", dest="of_set", choices=(measure_plan.FULL, measure_plan.QUICK), default=measure_plan.FULL,
        help="with --slim: the set of measurements that it belongs to; default full")


def run(options):
    """-> the exit status."""
    if options.slim:
        if options.check or options.folder:
            raise UsageError("--slim takes two files and nothing else but --set")
        write(options.slim[1], slim.dump(slim.load(options.slim[0], options.of_set)))
        return 0
    folder = options.folder or PAGES_FOLDER
    if options.check:
        return check(folder)
    for path in write_pages(folder):
        progress(f"wrote {path}")
    return 0


def write_pages(folder):
    """-> the paths of the pages."""
    made = render(folder)
    for name, text in made.items():
        write(os.path.join(folder, name), text)
    return [os.path.join(folder, name) for name in made]


def render(folder):
    """-> {file: text}"""
    own = os.path.join(folder, TEMPLATE)
    with open(own if os.path.exists(own) else os.path.join(PAGES_FOLDER, TEMPLATE), encoding="utf-8") as file:
        return pages(file.read(), load_folder(folder))


def check(folder):
    """-> the exit status: 1 if a page is not what the results give."""
    made, status = render(folder), 0
    for name in sorted({*made, *(name for name in os.listdir(folder) if name.endswith(".md"))}):
        there = read(os.path.join(folder, name))
        if there == made.get(name):
            continue
        status = 1
        print(f"{os.path.join(folder, name)} is not what {folder}/data gives: run cairn-bench report {folder}"
              if name in made else f"{os.path.join(folder, name)} is no page of the template: remove it",
              file=sys.stderr)
        difference = difflib.unified_diff(there.splitlines(), made.get(name, "").splitlines(), "there", "given",
                                          lineterm="", n=0)
        print(*itertools.islice(difference, DIFFERENCE_LINES_MAX), sep="\n", file=sys.stderr)
    return status


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    """Replaces a file as a whole."""
    try:
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from error
