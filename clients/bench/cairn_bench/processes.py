"""Which programs take the processors' time, from /proc: those that this one started, and the others."""
import collections
import os

# utime, stime, and those of children that ended and were waited for.
TICK_FIELDS = slice(11, 15)
PARENT_FIELD, START_FIELD = 1, 19
KERNEL_PID, KERNEL_NAME = 2, "kernel threads"

Process = collections.namedtuple("Process", "name parent ticks")


def scan():
    """-> {(pid, time of its start): Process} of all that run."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                key, process = parse(file.read())
        except OSError:
            continue  # ended meanwhile
        found[key] = process
    return found


def parse(text):
    """-> key and Process of a /proc/PID/stat; a name may have parentheses and spaces."""
    start, _, rest = text.rpartition(")")
    pid, _, name = start.partition(" (")
    fields = rest.split()
    parent = int(fields[PARENT_FIELD])
    if KERNEL_PID in (int(pid), parent):
        name = KERNEL_NAME
    return (int(pid), int(fields[START_FIELD])), Process(name, parent, sum(map(int, fields[TICK_FIELDS])))


def own(processes, root):
    """-> the keys of a process and of all that it started, in any number of steps, as far as their parents run."""
    children = collections.defaultdict(list)
    for key, process in processes.items():
        children[process.parent].append(key)
    found, waiting = set(), [key for key in processes if key[0] == root]
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting.extend(children[key[0]])
    return found


def own_ticks(processes, root):
    """-> what a process, those that it started and those of these that ended have taken."""
    return sum(processes[key].ticks for key in own(processes, root))


def used_by_others(before, after, root):
    """-> Counter of ticks by name that other programs took between two scans.

    What a program took that began and ended in between stands with the one that waited for its end.
    """
    mine, used = own(before, root) | own(after, root), {}
    for key, process in after.items():
        used[key] = process.ticks - (before[key].ticks if key in before else 0)
    by_pid = {key[0]: key for key in before}
    for key, process in before.items():
        heir = key
        while heir and heir not in after:
            heir = by_pid.get(before[heir].parent)
        if heir and heir != key:
            used[heir] -= process.ticks  # what it had taken before is its heir's now
    names = collections.Counter()
    for key, ticks in used.items():
        if key not in mine:
            names[after[key].name] += max(0, ticks)
    return names
