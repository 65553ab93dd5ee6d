"""`cairn-bench measure`: everything that the pages in docs/results need, one measurement after the other."""
import argparse
import os
import shlex
import subprocess
import time

from . import measure_plan, report_command, slim
from .bench import DAEMONS, check_program
from .child import run_bench, run_program
from .client import REPOSITORY
from .manifest import commit
from .options import CommandError, add_build_options, progress
from .report_data import FOLDER, SUFFIX, load_folder

MAKE_MODEL = "cairn-make-model"
# Tables of measurements by themselves, and their whole JSON.
RAW = "raw"
# Programs that wait for a processor, as a share of these, above which times say little.
LOAD_SHARE_MAX = 0.5

DESCRIPTION = """\
Runs all measurements of docs/results and writes the pages: some 80 minutes on two cores that do nothing else, and 6 GiB
of disk. Results are kept in OUT_DIR after each step: the same command goes on where it was stopped. Give an OUT_DIR
that git ignores, such as build/results. With --quick it only shows that everything works, in a minute or two.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("measure", help="all measurements of docs/results, and their pages",
                                   description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench measure build/results --pages docs/results"
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("folder", metavar="OUT_DIR", help="where results go: data/ for pages, raw/ with everything")
    add("--pages", metavar="DIR", help="where pages and their data go in the end; default OUT_DIR")
    add("--quick", action="store_true", help="a minute or two, for a test: the figures say nothing")
    add("--list", action="store_true", help="only say what would be measured")
    add("--peer", metavar="PATH", help="another engine's program, as for speed; takes an hour more")
    add("--larger", nargs=2, metavar=("MODEL", "TASKS"),
        help="answers of one more trained model to questions of a tasks file")
    add_build_options(add)


def run(options):
    """-> the exit status."""
    tasks, shape = (os.path.join(options.folder, name) for name in ("tasks.jsonl", measure_plan.SHAPE_FILE))
    parts = measure_plan.quick_parts() if options.quick else measure_plan.full_parts(
        tasks, shape, options.peer, options.larger)
    if options.list:
        for part in parts:
            print(f"{part.name}, {minutes(part.seconds)}\n  {shlex.join(slim.command(['', *part.arguments]))}")
        return 0
    check(options, parts)
    for folder in (FOLDER, RAW):
        os.makedirs(os.path.join(options.folder, folder), exist_ok=True)
    if not options.quick:
        make_inputs(options, tasks, shape)
    status = Measuring(options, parts).run()
    if status == 0:
        publish(options)
    return status


def check(options, parts):
    """Raises CommandError for what would fail, or be of no use, after an hour."""
    for name in ("cairn", "cairn-policy-eval", *DAEMONS, *([] if options.quick else [MAKE_MODEL])):
        check_program(os.path.join(options.build, "bin"), name)
    check_ignored(options.folder)
    data = os.path.join(options.folder, FOLDER)
    if os.path.isdir(data) and os.listdir(data):
        check_there(options, load_folder(options.folder), {part.name for part in parts})
    load = os.getloadavg()[0]
    if load > LOAD_SHARE_MAX * (os.cpu_count() or 1):
        progress(f"the machine is busy (load average {load:.1f}): times will say little")


def check_there(options, there, names):
    """Raises CommandError for results that these do not go on with. there: Results. names: of the parts."""
    of_set, made = measure_plan.QUICK if options.quick else measure_plan.FULL, there.any()["manifest"]["commit"]
    # Complete ones are only written to pages.
    here = made if set(there.parts) == names else commit()
    for what, ours, stored in (("of the set", of_set, there.any()["set"]), ("of commit", here, made)):
        if ours != stored:
            raise CommandError(f"{options.folder} has results {what} {stored}, and these would be {what} {ours}: give "
                               "another folder, or remove this one")
    if not set(there.parts) <= names:
        raise CommandError(f"{options.folder} has results that this does not measure: "
                           f"{', '.join(sorted(set(there.parts) - names))}; give another folder, or the options that "
                           "they were measured with")


def check_ignored(folder):
    """Raises CommandError where results would count as changed sources, so that no page says which they are of."""
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(REPOSITORY))
    if inside.startswith(".."):
        return
    done = subprocess.run(["git", "-C", REPOSITORY, "check-ignore", "-q", inside], check=False)
    if done.returncode == 1:
        raise CommandError(f"{folder} lies in the repository and is not ignored by git: give another, such as "
                           "build/results")


def make_inputs(options, tasks, shape):
    """Makes what is measured, unless it is there."""
    if not os.path.exists(tasks):
        call(options, ["make-tasks", "--out", tasks], "tasks")
    if not os.path.exists(shape):
        progress(f"making {shape}")
        done = run_program([os.path.join(options.build, "bin", MAKE_MODEL), "--preset", measure_plan.SHAPE_PRESET,
                            "--type", measure_plan.SHAPE_TYPE, "--seed", "1", "-o", f"{shape}.tmp"])
        if done.returncode != 0:
            raise CommandError(f"{MAKE_MODEL} ended with status {done.returncode}: {done.stderr.strip()}")
        os.replace(f"{shape}.tmp", shape)


def call(options, arguments, name):
    """Runs cairn-bench; raises CommandError where it fails."""
    builds = ["--build", options.build, *(["--store-dir", options.store_dir] if options.store_dir else [])]
    status = run_bench([*arguments, *builds], os.path.join(options.folder, RAW, f"{name}.txt"))
    if status != 0:
        raise CommandError(f"{name} ended with status {status}; its own message stands above. Once its cause is gone "
                           "the same command goes on from here")


class Measuring:
    """Runs parts one after the other, and says how long that takes."""

    def __init__(self, options, parts):
        self.options, self.parts = options, parts
        # Of those that ran, to judge how fast this machine is.
        self.planned, self.took = 0, 0
        self.commit = commit()

    def run(self):
        """-> the exit status."""
        waiting = [part for part in self.parts if not os.path.exists(self.path(FOLDER, part))]
        for index, part in enumerate(waiting):
            left = sum(each.seconds for each in waiting[index:])
            number = self.parts.index(part) + 1
            progress(f"[{number}/{len(self.parts)}] {part.name}: about {minutes(self.expected(part.seconds))}; "
                     f"about {minutes(self.expected(left))} left")
            self.check_sources()
            start = time.monotonic()
            self.measure(part)
            self.planned, self.took = self.planned + part.seconds, self.took + time.monotonic() - start
        return 0

    def check_sources(self):
        """Raises CommandError where a page could not say any more which sources its figures are of."""
        now = commit()
        if now != self.commit:
            raise CommandError(f"the sources changed meanwhile: they were {self.commit} and are {now} ('+' says that "
                               "files differ from the commit). Go back to what they were, and the same command goes on")

    def expected(self, seconds):
        return seconds * (self.took / self.planned if self.planned else 1)

    def path(self, folder, part):
        return os.path.join(self.options.folder, folder, part.name + SUFFIX)

    def measure(self, part):
        raw = self.path(RAW, part)
        call(self.options, [*part.arguments, "--json", raw], part.name)
        of_set = measure_plan.QUICK if self.options.quick else measure_plan.FULL
        report_command.write(self.path(FOLDER, part), slim.dump(slim.load(raw, of_set)))


def publish(options):
    """Writes the pages, and their data where they go."""
    folder = options.pages or options.folder
    if options.pages:
        data = os.path.join(folder, FOLDER)
        os.makedirs(data, exist_ok=True)
        there = load_folder(options.folder).parts
        for name in os.listdir(data):
            if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in there:
                os.remove(os.path.join(data, name))
        for name, value in there.items():
            report_command.write(os.path.join(data, name + SUFFIX), slim.dump(value))
    for path in report_command.write_pages(folder):
        progress(f"wrote {path}")


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
