"""What a run ran on: goes into every JSON, so that its figures can be judged and repeated."""
import datetime
import hashlib
import os
import platform
import re
import subprocess
import sys

import google.protobuf
import grpc

from .client import REPOSITORY

HASHED_BYTES = 1 << 20


def manifest(profile, seeds, settings):
    """-> what is known at the start; Contention adds what else the machine did."""
    return {
        "commit": commit(),
        "start_time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command_line": sys.argv,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {_memory_gib():.1f} GiB",
        "cpu": _first(r"^(?:model name|CPU part)\s*:\s*(.*)", "/proc/cpuinfo") or platform.machine(),
        "kernel": platform.release(),
        "profile": profile,
        "seeds": seeds,
        "daemon_settings": settings,
        "packages": packages(),
    }


def commit():
    """-> the commit of the sources, with "+" if they were changed since; "unknown" outside of git."""
    try:
        name = _output("git", "-C", REPOSITORY, "rev-parse", "HEAD").strip()
        return name + ("+" if _output("git", "-C", REPOSITORY, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


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
    """How busy the machine was with other things since this was made.

    pids: of daemons that run now; those that ended count as children.
    """

    def __init__(self):
        self.load, (self.busy, self.all), self.own = os.getloadavg(), _processor_ticks(), _own_ticks(())

    def to_json(self, pids=()):
        busy, everything = _processor_ticks()
        passed = everything - self.all
        other = busy - self.busy - (_own_ticks(pids) - self.own)
        return {"load_average_start": self.load, "load_average_end": os.getloadavg(),
                "other_cpu_share": round(max(0, other) / passed, 4) if passed else None}


def _processor_ticks():
    """-> ticks that all processors were busy (stolen ones too), and all ticks."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _own_ticks(pids):
    times, ticks = os.times(), os.sysconf("SC_CLK_TCK")
    own = (times.user + times.system + times.children_user + times.children_system) * ticks
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        own += int(fields[11]) + int(fields[12])
    return own


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
