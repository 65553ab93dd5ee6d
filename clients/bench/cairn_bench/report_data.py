"""The results that pages are made of: all slim files of a folder, which must be of one build and one machine."""
import os
import statistics

from . import slim
from .result_file import ResultsError

FOLDER, SUFFIX = "data", ".json"
# What all files must have in common, as a message names it.
IDENTITY = (("set", lambda part: part["set"]), ("commit", lambda part: part["manifest"]["commit"]),
            ("daemons", lambda part: "/".join(part["build"])), ("machine", lambda part: part["manifest"]["machine"]),
            ("processor", lambda part: part["manifest"]["cpu"]))
REFERENCE, OURS = "full", "dynakv"


class Results:
    """parts: {name of a part of measure_plan: slim results}, at least one."""

    def __init__(self, parts):
        self.parts = parts
        self.check_one_build()

    def check_one_build(self):
        first, *others = self.parts.items()
        for name, value in others:
            for what, field in IDENTITY:
                if field(value) != field(first[1]):
                    raise ResultsError(f"{first[0]} and {name} are not of one {what}: {field(first[1])!r} and "
                                       f"{field(value)!r}. A page has one build and one machine: measure both anew")

    def any(self):
        """-> a part, for what all have in common."""
        return next(iter(self.parts.values()))

    def runs(self, name):
        """-> [SpeedRun] of a part, [] where it was not measured."""
        return [SpeedRun(run) for run in self.parts.get(name, {}).get("runs", ())]

    def run(self, name, context, policy):
        """-> SpeedRun or None."""
        return next((run for run in self.runs(name) if (run.context, run.policy) == (context, policy)), None)

    def peers(self, name):
        """-> {context: [values of each round]} of another engine's fastest setting."""
        best = {}
        for peer in self.parts.get(name, {}).get("peers", ()):
            there = best.get(peer["context"])
            if peer["values"] and (not there or statistics.median(peer["values"]) > statistics.median(there)):
                best[peer["context"]] = peer["values"]
        return best

    def answers(self, name, policy):
        """-> Answers of a policy, with all its seeds, or None."""
        runs = [run for run in self.parts.get(name, {}).get("answers", ()) if run["policy"] == policy]
        return Answers(runs) if runs else None

    def policies(self, name):
        return list(dict.fromkeys(run["policy"] for run in self.parts.get(name, {}).get("answers", ())))


class SpeedRun:
    """One policy at one context length."""

    def __init__(self, run):
        self.context, self.policy, self.prefill_seconds = run["context"], run["policy"], run["prefill_seconds"]
        self.values_by_name = run["values"]

    def values(self, name):
        return [value for value in self.values_by_name[name] if value is not None]

    def median(self, name):
        """-> the median of all rounds, or None."""
        values = self.values(name)
        return statistics.median(values) if values else None

    def rounds(self):
        return len(self.values_by_name["decode_tokens_per_second"])


class Answers:
    """The answers of one policy, seed by seed. runs: as slim files have them."""

    def __init__(self, runs):
        self.runs = runs

    def seeds(self):
        return len(self.runs)

    def lengths(self):
        return sorted({length for run in self.runs for length, _, _ in run["documents"].values()})

    def documents(self, length):
        """-> the numbers of the documents of a length."""
        return {number for run in self.runs for number, counts in run["documents"].items() if counts[0] == length}

    def right(self, length, documents=None):
        """-> [(right, asked)] of each seed, of documents of a length. documents: only of these."""
        return [(sum(counts[1] for counts in some), sum(counts[2] for counts in some))
                for some in ([counts for number, counts in run["documents"].items()
                              if counts[0] == length and (documents is None or number in documents)]
                             for run in self.runs)]

    def share(self, length, documents=None):
        """-> right answers of all seeds, as a share of what was asked, or None."""
        pairs = self.right(length, documents)
        asked = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / asked if asked else None

    def net(self, reference, length):
        """-> points that it has more than other answers to the same questions, or None."""
        if not reference:
            return None
        documents = self.documents(length) & reference.documents(length)
        mine, theirs = self.share(length, documents), reference.share(length, documents)
        return None if mine is None or theirs is None else 100 * (mine - theirs)

    def of_task(self, length, task):
        """-> [(right, asked)] of each seed that was asked such questions."""
        return [tuple(run["tasks"][str(length)][task]) for run in self.runs
                if task in run["tasks"].get(str(length), {})]


def load_folder(folder):
    """-> Results of FOLDER/data. Raises ResultsError where there is none, or where they do not fit together."""
    where = os.path.join(folder, FOLDER)
    names = sorted(name for name in (os.listdir(where) if os.path.isdir(where) else ()) if name.endswith(SUFFIX))
    if not names:
        raise ResultsError(f"no results in {where}: cairn-bench measure writes them")
    return Results({name.removesuffix(SUFFIX): slim.load(os.path.join(where, name)) for name in names})
