"""The command line: subcommands, and what becomes of errors and signals."""
import argparse
import sys

try:
    import google.protobuf  # noqa: F401  pylint: disable=unused-import
    import grpc  # noqa: F401  pylint: disable=unused-import
except ImportError as error:
    sys.exit(f"cairn-bench: {error}: install Debian's python3-grpcio, python3-protobuf and protobuf-compiler, and run "
             "it with /usr/bin/python3")

from . import (compare_command, interrupts, make_tasks_command, measure_command,  # noqa: E402
               report_command, speed_command, tasks_command, tune_command)
from .client import version  # noqa: E402
from .daemons import DaemonError  # noqa: E402
from .options import CommandError, UsageError  # noqa: E402
from .result_file import ResultsError  # noqa: E402
from .tasks import TasksError  # noqa: E402

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
ERRORS = (DaemonError, ResultsError, TasksError, CommandError, OSError)


def main(arguments=None):
    """-> the exit status: 0, 1 an error, 2 a wrong command line, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="cairn-bench", description="Runs workloads over real daemons of Cairn and reports what each way of "
        "choosing what is read answers and costs.", formatter_class=argparse.RawDescriptionHelpFormatter, epilog="""\
examples:
  cairn-bench tasks --model model.gguf --tasks tasks.jsonl --json tasks.json
  cairn-bench speed --model model.gguf --context 4096,16384 --dram-budget 1/13
  cairn-bench compare --policies full,dynakv --json compare.json

docs/cairn-bench.md describes the results.""")
    parser.add_argument("--version", action="version", version=f"cairn-bench {version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (tasks_command, speed_command, compare_command, make_tasks_command, measure_command,
                    report_command, tune_command):
        command.add_parser(subparsers)
    options = parser.parse_args(arguments)
    interrupts.install()
    try:
        return options.run(options)
    except KeyboardInterrupt:
        return interrupted()
    except Exception as error:  # pylint: disable=broad-except
        if interrupts.requested():
            return interrupted()
        if not isinstance(error, ERRORS):
            raise
        print(f"cairn-bench: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED


def interrupted():
    """-> the exit status."""
    print("cairn-bench: interrupted; the same command goes on from what is kept", file=sys.stderr)
    return INTERRUPTED
