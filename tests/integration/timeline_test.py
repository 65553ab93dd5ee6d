"""The compute node's timeline (--trace): what is in the file, and that it can be read however the process ended.

Nothing here depends on how long anything takes.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/timeline_test.py
"""
import collections
import json
import unittest

import daemons
from daemons import Cairn

LAYERS = 5
TOKENS = 6
# Memory for fetched entries that does not hold the conversation: there is something to wait for.
KV_CONFIG = "arena_bytes_max: 1048576\n"
GENERATE = ("", "--file", daemons.DEMO_TEXT, "--policy", "dynakv", "--select", "10%", "--tokens", str(TOKENS),
            "--ignore-end")
# What encloses a span: one of these. None: it may run on a thread of the pool.
ENCLOSING = {
    "open": {"generation"}, "restore": {"open"}, "restore_index": {"restore"}, "pass": {"generation"},
    "forward": {"pass"}, "layer": {"forward"}, "project": {"layer"}, "attention": {"layer"},
    "project_attended": {"layer"}, "feed_forward": {"layer"}, "predict_queries": {"layer"},
    "predict": {"predict_queries"}, "select": {"attention"}, "estimate": {"attention"}, "attend_means": {"attention"},
    "wait_for_fetch": {"attention", "settle"}, "load_index": {"settle"},
    "logits": {"forward"}, "settle": {"pass", "start_checkpoint"}, "assign": {"attention", "settle", None},
    "adapt": {"settle", None}, "start_checkpoint": {"generation"}, "wait_for_checkpoint": {"generation"}}


def spans_by_thread(events):
    """-> {thread: [(start, end, event)]} in nanoseconds, outer ones first."""
    threads = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads[event["tid"]].append((start, start + round(event["dur"] * 1000), event))
    return {thread: sorted(spans, key=lambda span: (span[0], -span[1])) for thread, spans in threads.items()}


def nested(spans):
    """-> [(event, the event that encloses it or None)]; fails where spans overlap without one enclosing the other."""
    open_spans, pairs = [], []
    for start, end, event in spans:
        while open_spans and open_spans[-1][1] <= start:
            open_spans.pop()
        if open_spans and end > open_spans[-1][1]:
            raise AssertionError(f"{event} ends behind {open_spans[-1][2]}, in which it begins")
        pairs.append((event, open_spans[-1][2] if open_spans else None))
        open_spans.append((start, end, event))
    return pairs


class TimelineTest(unittest.TestCase):
    def generate(self, cairn):
        """A turn on a new conversation and one on what is stored of it."""
        first = cairn.generate(*GENERATE)
        cairn.generate(" the", "--conversation", str(first["conversation_id"]), "--tokens", str(TOKENS), "--ignore-end")

    def check(self, events):
        """-> how many spans have each name."""
        pairs = [pair for spans in spans_by_thread(events).values() for pair in nested(spans)]
        for event, outer in pairs:
            if event["name"] != "generation":
                self.assertIn(outer and outer["name"], ENCLOSING[event["name"]], (event, outer))
            if outer and "layer" in event["args"] and "layer" in outer["args"]:
                # What the next layer will need is predicted within this one.
                ahead = event["name"] == "predict_queries"
                self.assertEqual(event["args"]["layer"], outer["args"]["layer"] + ahead, (event, outer))
        names = collections.Counter(event["name"] for event, _ in pairs)
        self.assertEqual(names["generation"], 2)
        # Each step goes through every layer; a prompt is at least one pass more.
        self.assertGreaterEqual(names["pass"], 2 * TOKENS)
        self.assertEqual(names["forward"], names["pass"])
        self.assertEqual(names["layer"], LAYERS * names["forward"])
        self.assertEqual(names["attention"], names["layer"])
        for name in ("predict", "select", "settle", "assign", "adapt", "restore", "restore_index",
                     "start_checkpoint", "wait_for_checkpoint"):
            self.assertGreater(names[name], 0, name)
        self.check_flights(events)
        return names

    def check_flights(self, events):
        flights = collections.defaultdict(dict)
        for event in events:
            if event["ph"] in "be":
                self.assertNotIn(event["ph"], flights[event["id"]], event)
                flights[event["id"]][event["ph"]] = event
        for pair in flights.values():
            self.assertLessEqual(pair["b"]["ts"], pair["e"]["ts"])
        fetches = [pair["b"]["args"] for pair in flights.values() if pair["b"]["name"] == "fetch"]
        self.assertEqual({fetch["layer"] for fetch in fetches}, set(range(LAYERS)))
        self.assertGreater(sum(fetch["bytes"] for fetch in fetches), 0)

    def test_spans_nest_and_the_file_is_whole_after_an_orderly_end(self):
        with Cairn(kv_config=KV_CONFIG) as cairn:
            cairn.compute.stop()
            cairn.compute.command += ["--trace", cairn.path("trace.json")]
            cairn.compute.start()
            self.generate(cairn)
            self.assertEqual(cairn.stop(), [0, 0])
            with open(cairn.path("trace.json"), encoding="utf-8") as file:
                events = json.load(file)
            names = self.check(events)
            self.assertEqual(names["estimate"], 0)
            self.assertGreater(names["load_index"], 0)
            self.assertEqual((events[-1]["name"], events[-1]["args"]), ("end", {"dropped_event_count": 0}))

    def test_a_killed_process_leaves_every_generation_that_ended(self):
        with Cairn(kv_config=KV_CONFIG) as cairn:
            cairn.compute.stop()
            cairn.write_compute_config(f'trace_path: "{cairn.path("trace.json")}"\n'
                                       "experiment { estimate_percent: 25 select_ahead: false }")
            cairn.compute.start()
            self.generate(cairn)
            cairn.compute.kill()
            with open(cairn.path("trace.json"), encoding="utf-8") as file:
                events = json.loads(file.read() + "]")
            names = self.check(events)
            self.assertGreater(names["attend_means"], 0)
            self.assertEqual(names["load_index"], 0)

    def test_a_file_that_cannot_be_made_is_named(self):
        done = daemons.subprocess.run(
            [daemons.binary("cairn-compute-node"), "--model", daemons.MODEL, "--kv", "ram", "--trace", "/absent/x"],
            capture_output=True, timeout=daemons.START_TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"trace_path: create timeline /absent/x", done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
