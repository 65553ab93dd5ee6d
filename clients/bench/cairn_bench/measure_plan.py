"""What `cairn-bench measure` runs for the pages in docs/results, in this order, and how long it takes.

The names are those of the files in docs/results/data, and those by which report_tables finds its figures.
"""
import collections

from .compare_command import MODEL, TASKS

# name: of the part. arguments: of cairn-bench, without --json and --build. seconds: on two cores that do nothing else.
Part = collections.namedtuple("Part", "name arguments seconds")

FULL, QUICK = "full", "quick"
PROFILES = ("emmc", "ufs31", "nvme")
BUDGETS = ("1/34", "1/13", "1/4", "1/2")
BASELINES = ("no-cluster", "static-cluster", "local-cluster")
# Random weights of this shape, as cairn-make-model makes them.
SHAPE_PRESET, SHAPE_TYPE = "qwen2.5-1.5b", "q8_0"
SHAPE_FILE = f"{SHAPE_PRESET}-{SHAPE_TYPE}.gguf"


def budget_name(budget):
    return "memory-" + budget.replace("/", "-")


def full_parts(tasks, shape, peer=None, larger=None):
    """-> [Part]. tasks: a file of make-tasks with its defaults. shape: the file of SHAPE_FILE. peer: a program for
    --peer. larger: (model, tasks file) of one more model that was trained.
    """
    answers, speed = ["tasks", "--model", MODEL, "--tasks", tasks], ["speed", "--model", MODEL]
    peers = ["--peer", peer] if peer else []
    parts = [
        Part("answers-prefilled", [*answers, "--policy", "full,dynakv", "--seed", "1,2,3", "--parallel", "4"], 900),
        Part("answers-baselines", [*answers, "--policy", "oracle,no-cluster,static-cluster,local-cluster,random,"
                                   "streaming", "--documents", "3", "--parallel", "4"], 700),
        Part("answers-fed", [*answers, "--policy", "dynakv", "--prefill", "256", "--documents", "3", "--parallel",
                             "4"], 600),
        Part("answers-fed-baselines", [*answers, "--policy", "static-cluster,local-cluster", "--prefill", "256",
                                       "--documents", "3", "--lengths", "1024,4096", "--parallel", "4"], 300)]
    parts += [Part(f"speed-{profile}", [*speed, "--context", "1024,4096,8192,16384", "--profile", profile,
                                        "--dram-budget", "1/13", "--tokens", "32",
                                        *(peers if profile == "nvme" else [])], 240 + (300 if peers else 0))
              for profile in PROFILES]
    parts += [
        Part("near-full", ["compare", "--tasks", TASKS, "--policies", ",".join(["full", "dynakv", *BASELINES]),
                           "--context", "4096,16384", "--rounds", "3", "--tokens", "32", "--lengths", "4096",
                           "--documents", "1", "--profile", "emmc", "--dram-budget", "1/13", "--no-plots"], 600),
        *(Part(budget_name(budget), [*speed, "--context", "16384", "--policy", "dynakv", "--profile", "emmc",
                                     "--dram-budget", budget, "--tokens", "32"], 60) for budget in BUDGETS),
        Part("decode-long", [*speed, "--context", "128", "--tokens", "3000", "--rounds", "1"], 90),
        Part("decode-behind", [*speed, "--context", "4096", "--policy", "dynakv", "--tokens", "1024", "--rounds", "1",
                               "--dram-budget", "1/4"], 60),
        Part("shape-short", ["speed", "--model", shape, "--context", "128", "--policy", "full", "--tokens", "32",
                             *peers], 90 + (60 if peers else 0)),
        Part("shape-long", ["speed", "--model", shape, "--context", "16384", "--policy", "dynakv", "--dram-budget",
                            "1/13", "--synthetic-kv", "--tokens", "32", *peers], 500 + (3000 if peers else 0))]
    if larger:
        model, file = larger
        parts.append(Part("answers-larger", ["tasks", "--model", model, "--tasks", file, "--policy", "full,dynakv",
                                             "--lengths", "1024,4096,16384", "--documents", "3", "--parallel", "4"],
                          900))
    return parts


def quick_parts():
    """-> [Part]: as few measurements as show that everything works; their figures say nothing."""
    answers = ["tasks", "--model", MODEL, "--tasks", TASKS, "--lengths", "1024", "--documents", "1"]
    speed = ["speed", "--model", MODEL, "--rounds", "1", "--tokens", "8"]
    return [
        Part("answers-prefilled", [*answers, "--policy", "full,dynakv", "--seed", "1,2"], 5),
        Part("answers-fed", [*answers, "--policy", "dynakv", "--prefill", "256"], 5),
        Part("answers-fed-baselines", [*answers, "--policy", "static-cluster,local-cluster", "--prefill", "256"], 8),
        Part("answers-baselines", [*answers, "--policy", "random,streaming"], 3),
        Part("speed-emmc", [*speed, "--context", "256,512", "--profile", "emmc", "--dram-budget", "1/4"], 6),
        Part("speed-nvme", [*speed, "--context", "512", "--dram-budget", "1/4"], 4),
        Part("near-full", ["compare", "--policies", "full,dynakv", "--context", "512", "--rounds", "1",
                           "--tokens", "8", "--lengths", "1024", "--documents", "1", "--closeness-tokens", "16",
                           "--profile", "emmc", "--no-plots"], 9),
        Part(budget_name("1/4"), [*speed, "--context", "512", "--policy", "dynakv", "--dram-budget", "1/4"], 2),
        Part("decode-long", [*speed, "--context", "128"], 4),
        Part("shape-short", [*speed, "--context", "128", "--policy", "full"], 2),
        Part("shape-long", [*speed, "--context", "512", "--policy", "dynakv", "--synthetic-kv",
                             "--dram-budget", "1/2"], 2)]
