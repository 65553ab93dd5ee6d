"""What every subcommand runs on: the model, the programs, daemons with the settings that were asked for."""
import collections
import contextlib
import json
import os
import subprocess

import grpc

from .child import run_program
from .client import Client
from .daemons import PROFILES, DaemonPair
from .kv_stats import KvNode
from .manifest import sha256
from .options import CHAT_OF_FILE, CommandError

DAEMONS = ("cairn-kv-node", "cairn-compute-node")
# The daemon's default, and the least it takes.
GENERATION_COUNT = 8
DRAM_BUDGET_BYTES_MIN = 1 << 20
ARENA_BYTES_MIN = 1 << 20
# Of the budget: where the KV node puts what is being read, and keeps some of it. What the compute node keeps in half of
# the budget saves more reads; a larger one is no faster (docs/decisions/0026-half-of-the-budget-is-kept-clusters.md).
ARENA_BUDGET_SHARE = 16
# Flash for one conversation: entries move when clusters change, and their old places are freed later. When a long
# prompt is clustered anew it takes up to 2.4 times its keys and values; clusters that grow in a long decode take more.
EXTENT_FILE_SHARE = 8
EXTENT_FILE_BYTES_MIN = 256 << 20
# Beside the stored context: what is asked and generated.
DECODED_TOKENS_MAX = 4096
# A daemon that ends closes its connections a little earlier.
END_WAIT_S = 2

# joint_key_dim: numbers of the keys of all KV heads of a layer.
Model = collections.namedtuple("Model", "kv_token_bytes kv_entry_bytes context_tokens layer_count joint_key_dim")
Running = collections.namedtuple("Running", "client kv daemons")


class Bench:
    """options: those of options.add_run_options, and model. Raises CommandError where something is missing."""

    def __init__(self, options):
        self.options, self.bin_dir = options, os.path.join(options.build, "bin")
        self.digests = {}  # by path: models are large
        self.model = inspect(self.bin_dir, options.model, options.kv_format)

    def settings(self, token_count, batch=1):
        """-> the settings of the KV node and of the compute node for conversations of so many tokens.

        batch: so many at once.
        """
        options = self.options
        longest_bytes = self.model.kv_token_bytes * (token_count + DECODED_TOKENS_MAX) * batch
        kv = {"extent_file_bytes": max(EXTENT_FILE_BYTES_MIN, EXTENT_FILE_SHARE * longest_bytes),
              "prefill_extent_file": False, "experiment": {"device_profile": PROFILES[options.profile]},
              "realtime_priority": options.realtime}
        compute = {"kv_format": options.kv_format, "threads": options.threads,
                   "realtime_priority": options.realtime,
                   "generation_count_max": max(GENERATION_COUNT, getattr(options, "parallel", 1), batch)}
        if getattr(options, "chat", None) not in (None, CHAT_OF_FILE):
            compute["chat_template"] = options.chat
        if getattr(options, "small_key_bits", ""):
            compute["experiment"] = {"small_key_bits": options.small_key_bits}
        if options.dram_budget:
            total = budget_bytes(options.dram_budget, token_count * self.model.kv_token_bytes)
            compute["dram_budget_bytes"] = total if batch == 1 else max(DRAM_BUDGET_BYTES_MIN, total // batch)
            kv["arena_bytes_max"] = max(ARENA_BYTES_MIN, total // ARENA_BUDGET_SHARE)
        return kv, compute

    def configuration(self, *names, programs=()):
        """-> what decides over results, by name: files and options, those of these names too.

        programs: what takes part beside the daemons.
        """
        files = {"model": self.options.model,
                 **{name: os.path.join(self.bin_dir, name) for name in (*DAEMONS, *programs)}}
        if "text" in names and self.options.text:
            files["text"] = self.options.text
        if "tasks" in names:
            files["tasks"] = self.options.tasks
            if self.options.prompts:
                files["prompts"] = self.options.prompts
        shared = ("policy", "seed", "select", "select_min", "select_max", "cluster_entries", "estimate", "select_ahead",
                  "kv_format", "profile", "threads", "realtime")
        try:
            for path in files.values():
                self.digests[path] = self.digests.get(path) or sha256(path)
        except OSError as error:
            raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error
        chosen = {name: getattr(self.options, name) for name in (*shared, *names) if name not in files}
        digests = {f"{name} (SHA-256)": self.digests[path] for name, path in files.items()}
        return {**digests, **chosen, "dram_budget": str(self.options.dram_budget or "default")}

    def token_ids(self, what, text):
        """-> the tokens that the model makes of a text, the one that begins a text included. what: for messages."""
        said = output_of([os.path.join(self.bin_dir, "cairn"), "model", "tokenize", "--special", self.options.model],
                         what, text)
        return [int(token) for token in said.split()]

    def model_digest(self):
        """-> the digest of the model in hex, as the daemon has it."""
        with self.running(0, lambda: "the digest of the model") as running:
            return running.client.model().digest.hex()

    @contextlib.contextmanager
    def running(self, token_count, what, store=None, compute=None, batch=1):
        """For a `with` statement: daemons for conversations of so many tokens, and clients -> Running.

        store: a folder with a store that outlives them; None: a new one. compute: {name: value}, more settings of the
        compute node. batch: of settings(). An error of a call becomes one of the daemon that ended, or a CommandError
        that begins with what().
        """
        clients = []
        kv_settings, compute_settings = self.settings(token_count, batch)
        experiment = {**compute_settings.get("experiment", {}), **(compute or {}).get("experiment", {})}
        compute_settings.update({**(compute or {}), **({"experiment": experiment} if experiment else {})})
        with DaemonPair(self.bin_dir, self.options.model, kv_settings, compute_settings, self.options.store_dir,
                        on_end=lambda: [client.close() for client in clients], store=store) as daemons:
            client, kv = Client(daemons.socket), KvNode(daemons.kv_socket)
            clients.extend((client, kv))
            try:
                yield Running(client, kv, daemons)
            # A closed channel refuses a new call with ValueError; a handshake that breaks off is an OSError.
            except (grpc.RpcError, OSError, ValueError) as error:
                daemons.check(END_WAIT_S)
                if not isinstance(error, grpc.RpcError):
                    raise
                raise CommandError(f"{what()}: {error.code().name}: {error.details()}") from error
            finally:
                client.close()
                kv.close()


def budget_bytes(budget, cache_bytes):
    """-> the bytes of a budget that is a share of cache_bytes or a number of bytes."""
    return max(DRAM_BUDGET_BYTES_MIN, int(budget * cache_bytes)) if budget < 1 else int(budget)


def check_program(bin_dir, name):
    """Raises CommandError where a program is missing."""
    if not os.access(os.path.join(bin_dir, name), os.X_OK):
        raise CommandError(f"no program {os.path.join(bin_dir, name)}: build it (cmake --build --preset release), or "
                           "say with --build where it is")


def inspect(bin_dir, model, kv_format):
    """-> Model: bytes of keys and values of a token, and of one entry, a layer's and KV head's share of that; tokens of
    the context; its shape.

    Raises CommandError for a model that Cairn does not run.
    """
    for name in ("cairn", *DAEMONS):
        check_program(bin_dir, name)
    done = subprocess.run([os.path.join(bin_dir, "cairn"), "model", "inspect", "--no-probe", "--json", model],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(done.stderr.strip())
    shape = json.loads(done.stdout)
    if not shape["runs"]:
        raise CommandError(f"{model} does not run with Cairn: {shape['problems'][0]}")
    token_bytes, heads = shape["kv_bytes_token"][kv_format], shape["heads"]
    return Model(token_bytes, token_bytes // (shape["layers"] * heads["kv"]), shape["context"], shape["layers"],
                 heads["kv"] * heads["dim"])


def output_of(command, what, text=""):
    """Runs a program on a text -> what it printed. Raises CommandError with its own message if it fails."""
    done = run_program(command, text)
    if done.returncode != 0:
        status = done.returncode
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        raise CommandError(f"{what}: {os.path.basename(command[0])} {how}:\n{done.stderr.strip()}")
    return done.stdout
