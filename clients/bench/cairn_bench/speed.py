"""What measurements of decoding come to: medians of rounds, by context length and policy."""
import re
import statistics

from .kv_stats import WRITE_CAUSES

# Of a round; each gets a median. All are described in docs/cairn-bench.md.
FIGURES = (
    "decode_tokens_per_second", "milliseconds_per_token", "first_token_seconds", "resume_first_token_seconds",
    "resume_open_seconds", "resume_index_seconds", "resume_steps", "resume_read_bytes", "resume_row_bytes",
    "resume_read_share", "read_bytes_per_token", "read_index_bytes_per_token",
    "fetched_bytes_per_token", "write_bytes_per_token", *(f"{name}_per_token" for name in WRITE_CAUSES),
    "write_amplification",
    "reads_per_token", "read_mean_bytes", "read_mean_entries", "effective_read_bytes_per_second", "cache_hit_rate",
    "io_milliseconds_per_token", "exposed_io_milliseconds_per_token", "hidden_io_share",
    "kv_dram_bytes", "kv_dram_accounted_bytes", "kv_flash_bytes")
PEER_FIGURE = "decode_tokens_per_second"


class SpeedResults:
    """Rounds of each context length and policy, and of another engine's settings; a part of a ResultFile.

    keys: [(context, policy)]. peers: [(context, name)], the name of a program with its setting.
    """

    def __init__(self, keys, peers):
        self.runs = {(context, policy): {"context": context, "policy": policy, "prefill": None, "rounds": []}
                     for context, policy in keys}
        self.peers = {(context, name): {"context": context, "peer": name, "rounds": []} for context, name in peers}

    def load(self, value):
        for runs, stored, name in ((self.runs, value["runs"], "policy"), (self.peers, value["peers"], "peer")):
            there = {(run["context"], run[name]): run for run in stored}
            for key, run in runs.items():
                run.update({field: there[key][field] for field in ("prefill", "rounds") if field in run})

    def has(self, key, number):
        """-> whether a round of a policy or a peer is there."""
        run = self.runs.get(key) or self.peers[key]
        return any(each["round"] == number for each in run["rounds"])

    def add(self, key, number, figures):
        run = self.runs.get(key) or self.peers[key]
        run["rounds"].append({"round": number, **figures})

    def to_json(self):
        return {"runs": [{**run, **medians(run["rounds"], FIGURES)} for run in self.runs.values()],
                "peers": [{**run, **medians(run["rounds"], (PEER_FIGURE,))} for run in self.peers.values()]}


def medians(rounds, names):
    """-> {name: the median of what the rounds have of it, or None}"""
    values = {name: [each[name] for each in rounds if each.get(name) is not None] for name in names}
    return {name: statistics.median(some) if some else None for name, some in values.items()}


def spread(rounds, name):
    """-> the least and the most that rounds have of a figure, or None where none has it."""
    values = [each[name] for each in rounds if each.get(name) is not None]
    return [min(values), max(values)] if values else None


def best_peer(peers, context):
    """-> the run of another engine that decodes fastest at a context length, or None."""
    some = [run for run in peers if run["context"] == context and run[PEER_FIGURE]]
    return max(some, key=lambda run: run[PEER_FIGURE], default=None)


def parse_peer(text):
    """-> decoded tokens per second, or None, of what another engine's program printed."""
    found = re.search(r"\bdecode_tokens_per_s=(\d+(?:\.\d+)?)", text)
    return float(found.group(1)) if found else None
