"""Starts the two daemons for a measurement and talks to them over gRPC; also what these scripts need of
clients/bench/cairn_bench/daemons.py.
"""
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "bench"))
from cairn_bench.daemons import Daemon, MemoryPeak, handshake, memory_bytes  # noqa: E402,F401


def load_protocols(directory):
    """Generates and imports the Python classes of the compute node's and the KV node's protocol."""
    subprocess.run(["protoc", f"--proto_path={ROOT}/proto", f"--python_out={directory}",
                    "cairn/compute/v1/inference.proto", "cairn/kv/v1/kv.proto"], check=True)
    sys.path.insert(0, str(directory))
    from cairn.compute.v1 import inference_pb2
    from cairn.kv.v1 import kv_pb2
    return inference_pb2, kv_pb2


class Cairn:
    """Both daemons in a directory of their own; kv is "node" (flash) or "ram". What does not name a policy attends
    everything.
    """

    def __init__(self, bin_dir, model, kv="node", extent_bytes=2 << 30, threads=0, context=0, data_dir=None,
                 kv_settings=None):
        self.directory = tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=data_dir)
        base = pathlib.Path(self.directory.name)
        self.kv_node = None
        if kv == "node":
            config = base / "kv.conf"
            config.write_text(f'data_dir: "{base}/store"\nsocket_path: "{base}/kv.sock"\n'
                              f"extent_file_bytes: {extent_bytes}\n"
                              + "".join(f"{name}: {value}\n" for name, value in (kv_settings or {}).items()))
            self.kv_node = Daemon([f"{bin_dir}/cairn-kv-node", "--config", str(config)])
        config = base / "compute.conf"
        config.write_text(f'model_path: "{model}"\nsocket_path: "{base}/c.sock"\nkv: "{kv}"\n'
                          f'kv_socket_path: "{base}/kv.sock"\nthreads: {threads}\ncontext_tokens_max: {context}\n'
                          'policy: "full"\n')
        self.compute_node = Daemon([f"{bin_dir}/cairn-compute-node", "--config", str(config)])
        self.protocol, self.kv_protocol = load_protocols(base)
        self.channel = grpc.insecure_channel(f"unix:{base}/c.sock")
        self.token = handshake(f"{base}/c.sock.handshake")
        self.kv_socket = f"{base}/kv.sock"

    def generate(self, ids, tokens_max, **fields):
        """Yields the events of one generation."""
        pb = self.protocol
        call = self.channel.unary_stream("/cairn.compute.v1.InferenceService/Generate",
                                         request_serializer=pb.GenerateRequest.SerializeToString,
                                         response_deserializer=pb.GenerateEvent.FromString)
        request = pb.GenerateRequest(tokens=pb.TokenIds(ids=ids), tokens_max=tokens_max, ignore_eos=True, **fields)
        metadata = [("cairn-token", self.token)] if self.token else []
        yield from call(request, metadata=metadata)

    def models(self):
        pb = self.protocol
        call = self.channel.unary_unary("/cairn.compute.v1.InferenceService/ListModels",
                                        request_serializer=pb.ListModelsRequest.SerializeToString,
                                        response_deserializer=pb.ListModelsResponse.FromString)
        return call(pb.ListModelsRequest(), metadata=[("cairn-token", self.token)] if self.token else []).models

    def kv_stats(self):
        """The KV node's counters."""
        pb = self.kv_protocol
        token = handshake(f"{self.kv_socket}.handshake")
        with grpc.insecure_channel(f"unix:{self.kv_socket}") as channel:
            call = channel.unary_unary("/cairn.kv.v1.KvService/GetStats",
                                       request_serializer=pb.GetStatsRequest.SerializeToString,
                                       response_deserializer=pb.GetStatsResponse.FromString)
            return call(pb.GetStatsRequest(), metadata=[("cairn-token", token)] if token else [])

    def pids(self):
        return [d.pid for d in (self.compute_node, self.kv_node) if d]

    def stop(self):
        self.channel.close()
        self.compute_node.stop()
        if self.kv_node:
            self.kv_node.stop()
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def random_ids(count, vocabulary, seed=1):
    generator = random.Random(seed)
    return [generator.randrange(300, vocabulary) for _ in range(count)]


def seconds(duration):
    return duration.seconds + duration.nanos / 1e9


def now():
    return time.monotonic()
