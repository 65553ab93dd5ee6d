"""What the KV node says of its device and cache, and what a number of decoded tokens took of them."""
import grpc

from .client import load_messages
from .daemons import handshake

SERVICE = "/cairn.kv.v1.KvService/"
CALL_TIMEOUT_S = 60
# Of entries, and of the index.
READ_COUNTERS = ("read_fetch_bytes", "read_index_bytes")
WRITE_COUNTERS = ("write_pool_bytes", "write_log_bytes", "write_relog_bytes", "write_meta_log_bytes",
                  "write_meta_table_bytes", "write_defragment_bytes", "write_index_bytes")
# With what is a part of another: the children of splits, in write_pool_bytes.
WRITE_CAUSES = (*WRITE_COUNTERS, "write_split_bytes")
FETCHED_COUNTERS = ("cache_hit_bytes", "cache_miss_bytes")


class KvNode:
    """A connection to a KV node, for its counters."""

    def __init__(self, path):
        self.pb, self.path = load_messages("cairn/kv/v1/kv.proto"), path
        self.channel = grpc.insecure_channel("unix:" + path)

    def counters(self):
        """-> {name: value} of its counters since its start, of those that are numbers."""
        call = self.channel.unary_unary(SERVICE + "GetStats",
                                        request_serializer=self.pb.GetStatsRequest.SerializeToString,
                                        response_deserializer=self.pb.GetStatsResponse.FromString)
        token = handshake(self.path + ".handshake")
        reply = call(self.pb.GetStatsRequest(), metadata=[("cairn-token", token)] if token else [],
                     timeout=CALL_TIMEOUT_S)
        values = {field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields}
        return {name: value for name, value in values.items() if isinstance(value, int)}

    def close(self):
        self.channel.close()


def read_bytes(before, after):
    """-> bytes read from the device for conversations between two calls of counters()."""
    return _grown(before, after, *READ_COUNTERS)


def resume_figures(before, after, kv_bytes):
    """-> what opening a conversation with kv_bytes of keys and values and its first steps took between two calls."""
    read, rows = read_bytes(before, after), _grown(before, after, "read_meta_bytes")
    return {"resume_read_bytes": read, "resume_row_bytes": rows, "resume_read_share": (read + rows) / kv_bytes}


def io_figures(before, after, token_count, model, io_seconds):
    """-> what decoding token_count tokens between two calls of counters() took of the device and of the cache.

    model: bench.Model. io_seconds: of a token, while fetches were under way. Rates and means are None where nothing was
    fetched or read.
    """
    read, reads = _grown(before, after, "read_fetch_bytes"), _grown(before, after, "read_fetch_count")
    # Useful are entries that were asked for and came from the device: without holes and neighbours on a page.
    fetched, useful = _grown(before, after, *FETCHED_COUNTERS), _grown(before, after, "cache_miss_bytes")
    written = _grown(before, after, *WRITE_COUNTERS)
    return {
        "read_bytes_per_token": read_bytes(before, after) / token_count,
        "read_index_bytes_per_token": _grown(before, after, "read_index_bytes") / token_count,
        "fetched_bytes_per_token": fetched / token_count,
        "write_bytes_per_token": written / token_count,
        **{f"{name}_per_token": _grown(before, after, name) / token_count for name in WRITE_CAUSES},
        "write_amplification": written / (token_count * model.kv_token_bytes),
        "reads_per_token": reads / token_count,
        "read_mean_bytes": read / reads if reads else None,
        "read_mean_entries": useful / reads / model.kv_entry_bytes if reads else None,
        "effective_read_bytes_per_second": useful / token_count / io_seconds if io_seconds else None,
        "cache_hit_rate": _grown(before, after, "cache_hit_bytes") / fetched if fetched else None,
    }


def _grown(before, after, *names):
    return sum(after[name] - before[name] for name in names)
