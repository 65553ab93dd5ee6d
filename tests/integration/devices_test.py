"""What a conversation says depends on tokens, options and seed alone: not on the device, its speed, what is in memory,
or how many threads compute. Every policy, on each engine that reads flash and on none.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/devices_test.py
"""
import concurrent.futures
import contextlib
import os
import sys
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT

sys.path.insert(0, os.path.join(daemons.REPOSITORY, "clients", "bench"))

SAMPLING = ("--ignore-end", "--temperature", "1.5", "--top-k", "40", "--seed", "7")
# Of some 1,100 tokens 400 are fed, so that clusters grow and split; 192 of each head are attended.
PROMPT_CHARACTERS = 5000
PREFILL = 700
GENERATED = 32
POLICIES = ("full", "dynakv", "kvswap", "no-cluster", "static-cluster", "local-cluster", "oracle", "random",
            "streaming")
# What the daemons are set to. A kernel without io_uring leaves one engine less to compare.
SETTINGS = {
    "ring": {},
    "threads": {"kv_config": 'io_engine: "threads"\narena_bytes_max: 0\n', "compute_config": "threads: 1\n"},
    "slow": {"kv_config": 'experiment { device_profile: "ufs3.1" }\narena_bytes_max: 1048576\n',
             "compute_config": "dram_budget_bytes: 1048576\n"},
    "memory": {"kv": "ram"},
}
# As a result names them.
ENGINES = {"ring": ("io_uring", "threads"), "threads": ("threads",), "slow": ("io_uring+ufs3.1", "threads+ufs3.1"),
           "memory": ("memory",)}
# Settings of the compute node for new conversations.
DYNAKV_VARIANTS = ("experiment { estimate_percent: 25 }\n", "experiment { select_ahead: false }\n")


class DevicesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            cls.prompt = file.read()[-PROMPT_CHARACTERS:]

    def running(self, more=""):
        """For a `with` statement: {name: Cairn} of all settings, with more of the compute node's."""
        return _Running({name: {**setting, "compute_config": setting.get("compute_config", "") + more}
                         for name, setting in SETTINGS.items()})

    def check(self, cairns, policy):
        def generate(cairn):
            return cairn.generate(self.prompt, "--policy", policy, "--prefill", str(PREFILL), "--tokens",
                                  str(GENERATED), *SAMPLING)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = dict(zip(cairns, pool.map(generate, cairns.values())))
        expected = results["ring"]
        self.assertEqual(len(expected["token_ids"]), GENERATED)
        for name, result in results.items():
            self.assertIn(result["io_engine"], ENGINES[name])
            self.assertEqual(result["policy"], policy)
            self.assertEqual(result["token_ids"], expected["token_ids"], (policy, name))
        return expected["token_ids"]

    def test_every_policy_says_the_same_on_every_device(self):
        said = {}
        with self.running() as cairns:
            for policy in POLICIES:
                with self.subTest(policy=policy):
                    before = rewritten_bytes(cairns["ring"])
                    said[policy] = self.check(cairns, policy)
                    if policy == "dynakv":  # without a split in the decode it would say little
                        self.assertGreater(rewritten_bytes(cairns["ring"]), before)
        # Where a selection were everything, policies could not be told apart.
        self.assertNotEqual(said["streaming"], said["full"])
        self.assertNotEqual(said["random"], said["full"])

    def test_so_do_the_options_of_dynakv(self):
        for more in DYNAKV_VARIANTS:
            with self.subTest(setting=more), self.running(more) as cairns:
                self.check(cairns, "dynakv")


class _Running:
    def __init__(self, settings):
        self.settings, self.stack = settings, contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            cairns = {name: stack.enter_context(Cairn(**setting)) for name, setting in self.settings.items()}
            self.stack = stack.pop_all()
        return cairns

    def __exit__(self, *error):
        return self.stack.__exit__(*error)


def rewritten_bytes(cairn):
    """-> how much more its KV node has written than it was sent: entries of split clusters are written again."""
    from cairn_bench.kv_stats import KvNode
    counters = KvNode(cairn.kv_socket).counters()
    return counters["write_log_bytes"] + counters["write_pool_bytes"] - counters["append_bytes"]


if __name__ == "__main__":
    try:
        import grpc  # noqa: F401  pylint: disable=unused-import
    except ImportError:
        sys.exit("python3-grpcio is not installed: deploy/install_packages.sh")
    unittest.main()
