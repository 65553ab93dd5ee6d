"""What a run ran on: goes into every JSON, so that its figures can be judged and repeated."""
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys

import google.protobuf
import grpc

from . import processes
from .client import REPOSITORY

HASHED_BYTES = 1 << 20
# Other programs that are named: so many, and only those that took so much of all processors' time.
OTHERS_MAX, OTHER_SHARE_MIN = 5, 0.005
# Where others took more than this, times say little.
BUSY_SHARE = 0.05


def manifest(bench, seeds, settings):
    """-> what is known at the start; Contention adds what else the machine did."""
    options = bench.options
    return {
        "commit": commit(),
        "start_time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command_line": sys.argv,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {_memory_gib():.1f} GiB",
        "cpu": cpu_name(),
        "read_bandwidth": read_bandwidth(bench.bin_dir, options.model),
        "kernel": platform.release(),
        "model": {"name": os.path.basename(options.model), "kv_token_bytes": bench.model.kv_token_bytes},
        "profile": options.profile,
        "seeds": seeds,
        "daemon_settings": settings,
        "packages": packages(),
    }


def cpu_name():
    """-> the name of the processor."""
    return _first(r"^(?:model name|CPU part)\s*:\s*(.*)", "/proc/cpuinfo") or platform.machine()


def commit():
    """-> the commit of the sources, with "+" if they were changed since; "unknown" outside of git."""
    try:
        name = _output("git", "-C", REPOSITORY, "rev-parse", "HEAD").strip()
        return name + ("+" if _output("git", "-C", REPOSITORY, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def read_bandwidth(bin_dir, model):
    """-> how fast all processors together read memory now, or None where that cannot be measured."""
    done = subprocess.run([os.path.join(bin_dir, "cairn"), "model", "inspect", "--json", model], capture_output=True,
                          text=True, check=False)
    measured = json.loads(done.stdout).get("read_bandwidth") if done.returncode == 0 else None
    return measured and {name: measured[name] for name in ("bytes_per_second", "threads")}


def packages():
    """-> {name: version} of Python's and of Debian's packages that Cairn is built from."""
    versions = {"python": platform.python_version(), "grpc": grpc.__version__,
                "protobuf": google.protobuf.__version__}
    try:
        with open(os.path.join(REPOSITORY, "deploy", "packages.txt"), encoding="utf-8") as file:
            names = re.findall(r"^([a-z][\w.+-]*)", file.read(), re.MULTILINE)
        # Exit status 1: some are not installed.
        said = subprocess.run(["dpkg-query", "-W", "-f", "${Package}=${Version}\n", *names], capture_output=True,
                              text=True, check=False).stdout
        versions.update(line.split("=", 1) for line in said.splitlines() if "=" in line)
    except OSError:
        pass  # no Debian
    return versions


def sha256(path):
    """-> the digest of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


class Contention:
    """How busy the machine was with other things since this was made."""

    def __init__(self):
        self.load, self.ticks, self.processes = os.getloadavg(), _processor_ticks(), processes.scan()

    def to_json(self):
        now, running = _processor_ticks(), processes.scan()
        busy, stolen, everything = (after - before for after, before in zip(now, self.ticks))
        own = processes.own_ticks(running, os.getpid()) - processes.own_ticks(self.processes, os.getpid())
        others = processes.used_by_others(self.processes, running, os.getpid())
        # An orphan's time stands with whoever waited for it, which nobody can foresee: then it may count twice.
        twice = max(1, others.total() / max(1, busy - own))
        return {"load_average_start": self.load, "load_average_end": os.getloadavg(),
                "other_cpu_share": _share(busy - own, everything), "stolen_cpu_share": _share(stolen, everything),
                "other_programs": {name: _share(ticks / twice, everything)
                                   for name, ticks in others.most_common(OTHERS_MAX)
                                   if ticks / twice > OTHER_SHARE_MIN * everything}}


def busy_note(contentions):
    """-> what a table must say of the busiest of several runs' contention, or ""."""
    worst = max(contentions, key=lambda each: each.get("other_cpu_share") or 0, default={})
    taken = worst.get("other_cpu_share") or 0
    if taken <= BUSY_SHARE:
        return ""
    named = [f"{name} {share:.0%}" for name, share in worst.get("other_programs", {}).items()]
    if worst.get("stolen_cpu_share", 0) > OTHER_SHARE_MIN:
        named.append(f"other virtual machines {worst['stolen_cpu_share']:.0%}")
    return (f"The machine was busy: other programs took {taken:.0%} of its processors' time"
            f"{' (' + ', '.join(named) + ')' if named else ''}. Times say little; what was read, written and answered "
            "does not depend on it.")


def run_title(file):
    """-> a line with what a run's figures are of. file: a ResultFile."""
    made, chosen = file.manifest, file.configuration
    busy = max((each.get("other_cpu_share") or 0 for each in file.contentions()), default=0)
    return ", ".join([f"model {made['model']['name']}", f"keys and values {chosen['kv_format']}",
                      f"flash {chosen['profile']}", f"memory {chosen['dram_budget']}",
                      f"commit {made['commit'][:9]}{'+' if made['commit'].endswith('+') else ''}",
                      *([f"machine busy ({busy:.0%})"] if busy > BUSY_SHARE else [])])


def _share(ticks, everything):
    return round(max(0, ticks) / everything, 4) if everything else None


def _processor_ticks():
    """-> ticks that all processors were busy (stolen ones too), those that were stolen, and all ticks."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], ticks[7], sum(ticks)


def _memory_gib():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)


def _first(pattern, path):
    try:
        with open(path, encoding="utf-8") as file:
            found = re.search(pattern, file.read(), re.MULTILINE)
    except OSError:
        return None
    return found and found.group(1)


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
