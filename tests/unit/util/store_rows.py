"""The rows of a store's metadata, decoded as docs/on-disk-format.md says.

It knows what that page says and nothing else, and shares no code with kv-node/layout: what the page does not tell,
or tells wrongly, shows here. Whatever the page does not allow is a StoreError. Head -1 is all heads, buffer -1 the
window.
"""
import struct
from dataclasses import dataclass

PAGE_BYTES = 4096
PART_BYTES_MAX = 65536
REGION_PAGES = 256
TOKENS_PER_ROW = 1024
UID_BYTES = 16
CREATOR_BYTES_MAX = 128
SESSION_ROW_VERSION = 3
HEAD_ROW_VERSION = 2
POOL, LOG_RUN, PACKED_RUN, INDEX_RUN = 1, 2, 3, 4
POOL_PAGES = (1, 2, 4, 8, 16)
# Of one K row, by KV format: f32, f16, q8, q4.
KEY_BYTES = {1: lambda dim: 4 * dim, 2: lambda dim: 2 * dim, 3: lambda dim: dim + 2, 4: lambda dim: dim + 2}


class StoreError(Exception):
    """The store is not what the page says; the message says where and how."""


def need(condition, message):
    if not condition:
        raise StoreError(message)


class Cursor:
    """Reads a value from its begin to its end."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        need(count <= len(self.data) - self.at, f"ends at byte {len(self.data)}, {count} needed at {self.at}")
        self.at += count
        return self.data[self.at - count:self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self):
        value = 0
        for i in range(9):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                need(byte or not i, f"varint with a zero behind it at byte {self.at - 1}")
                return value
        raise StoreError(f"varint of more than 9 bytes at byte {self.at - 9}")

    def count(self, low, high, what):
        value = self.varint()
        need(low <= value <= high, f"{what} {value}, not {low} to {high}")
        return value

    def fixed32(self):
        return struct.unpack("<I", self.take(4))[0]

    def bytes(self):
        return self.take(self.varint())

    def rest(self):
        return len(self.data) - self.at

    def version(self, newest=1):
        version = self.byte()
        need(1 <= version <= newest, f"row version {version}, 1 to {newest} are known")
        return version

    def uid(self):
        uid = self.bytes()
        need(len(uid) in (0, UID_BYTES), f"a uid of {len(uid)} bytes")
        return uid

    def end(self):
        need(not self.rest(), f"{self.rest()} bytes behind the end")


@dataclass(frozen=True)
class Layout:
    layers: int
    heads: int
    head_dim: int
    kv_format: int

    def entry_bytes(self, head):
        key_bytes = KEY_BYTES[self.kv_format](self.head_dim)
        value_bytes = -(-self.head_dim // 32) * 4 + (self.head_dim + 1) // 2 if self.kv_format == 4 else key_bytes
        return (self.heads if head == -1 else 1) * (key_bytes + value_bytes)


@dataclass(frozen=True)
class Key:
    model: bytes
    adapter: bytes
    adapter_scale: int
    rope: bytes
    kv_format: int
    domain: bytes


@dataclass
class Session:
    segment: int
    epoch: int
    op_seq: int
    layout: Layout
    key: Key
    label: bytes
    tokens: int
    flash_bytes: int
    created_us: int
    checkpoint_us: int
    uid: bytes = b""
    owner: bytes = b""
    attempt: int = 0
    lifetime: int = 1
    creator: bytes = b""
    app: int = 1


@dataclass
class Head:
    parent: int
    start: int
    tokens: int
    sealed: bool
    has_checkpoint: bool
    layout: Layout
    key: Key
    next_cluster_ids: list
    app: int = 1


@dataclass
class Part:
    kind: int
    downward: bool
    id: int
    first_page: int
    page_count: int
    offset: int
    runs: list  # (first position, how many), ascending
    entry_bytes: int
    crcs: list

    def count(self):
        return sum(length for _, length in self.runs)

    def begin(self):
        """Its first byte in the extent."""
        return self.page_count * PAGE_BYTES - self.bytes() if self.downward else self.offset

    def bytes(self):
        return self.count() * self.entry_bytes

    def extent(self):
        return (self.first_page, self.page_count, self.kind)

    def pages(self):
        """(page number in the part, first and last byte + 1 of the part in that page, of the extent)."""
        begin, end = self.begin(), self.begin() + self.bytes()
        first, last = begin // PAGE_BYTES, (end - 1) // PAGE_BYTES
        out = [(page - first, max(begin, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES))
               for page in range(first, last + 1)]
        return [(last - first - number, low, high) for number, low, high in reversed(out)] if self.downward else out


@dataclass
class Run:
    older_rows_lost: bool
    record_bytes: int
    records: int
    parts: list


def layout(cursor):
    out = Layout(cursor.count(1, 1024, "layers"), cursor.count(1, 1024, "KV heads"),
                 cursor.count(1, 1024, "head size"), cursor.varint())
    need(out.kv_format in KEY_BYTES, f"KV format {out.kv_format}")
    return out


def key(cursor):
    out = Key(cursor.bytes(), cursor.bytes(), cursor.fixed32(), cursor.bytes(), cursor.varint(), cursor.bytes())
    need(len(out.model) == 32 and len(out.adapter) in (0, 32), "a digest of another size")
    return out


def positions(cursor):
    runs, end = [], 0
    for number in range(cursor.varint()):
        distance = cursor.varint()
        length = cursor.varint()
        need(length and (distance or not number), "an empty run of positions, or one that touches the one before")
        runs.append((end + distance, length))
        end += distance + length
    return runs


def session_value(value):
    cursor = Cursor(value)
    version = cursor.version(SESSION_ROW_VERSION)
    out = Session(cursor.varint(), cursor.varint(), cursor.varint(), layout(cursor), key(cursor), cursor.bytes(),
                  cursor.varint(), cursor.varint(), cursor.varint(), cursor.varint())
    if version >= 2:
        out.uid, out.owner, out.attempt = cursor.uid(), cursor.uid(), cursor.varint()
        out.lifetime, out.creator = cursor.byte(), cursor.bytes()
        need(1 <= out.lifetime <= 3 and len(out.creator) <= CREATOR_BYTES_MAX,
             f"lifetime {out.lifetime}, creator {out.creator}")
    out.app = cursor.varint() if version >= 3 else 1
    cursor.end()
    return out


def head_value(value):
    cursor = Cursor(value)
    version = cursor.version(HEAD_ROW_VERSION)
    parent, start, tokens, flags = cursor.varint(), cursor.varint(), cursor.varint(), cursor.byte()
    need(flags < 4, f"segment flags {flags}")
    out = Head(parent, start, tokens, bool(flags & 1), bool(flags & 2), layout(cursor), key(cursor), [])
    out.next_cluster_ids = [cursor.varint() for _ in range(cursor.count(0, cursor.rest(), "next cluster ids"))]
    out.app = cursor.varint() if version >= 2 else 1
    cursor.end()
    return out


def policy_value(value):
    cursor = Cursor(value)
    cursor.version()
    out = {"version": cursor.varint(), "state": cursor.bytes(), "random_state": cursor.bytes()}
    cursor.end()
    return out


def tokens_value(value):
    cursor = Cursor(value)
    cursor.version()
    need(cursor.rest() % 4 == 0 and 0 < cursor.rest() <= 4 * TOKENS_PER_ROW, f"{cursor.rest()} bytes of token ids")
    return list(struct.unpack(f"<{cursor.rest() // 4}i", cursor.take(cursor.rest())))


def group(cursor, entry_bytes):
    count = cursor.count(1, cursor.rest(), "parts in a group")
    kind = cursor.byte()
    first = Part(kind >> 1, bool(kind & 1), cursor.varint(), cursor.varint(), cursor.varint(), cursor.varint(),
                 positions(cursor), entry_bytes, [])
    need(POOL <= first.kind <= INDEX_RUN, f"extent kind {first.kind}")
    need(count == 1 or (first.count() == 1 and first.kind != POOL), "a group of others than one-entry records")
    out = []
    for i in range(count):
        part = Part(first.kind, first.downward, first.id + i, first.first_page, first.page_count,
                    first.offset + i * entry_bytes, [(start + i, length) for start, length in first.runs], entry_bytes,
                    [])
        part.crcs = [cursor.fixed32() for _ in range(cursor.count(1, 17, "checksums"))]
        check_part(part)
        out.append(part)
    return out


def check_part(part):
    what = f"part {part.id}"
    need(part.id > 0, "a part with id 0")
    need(0 < part.bytes() <= PART_BYTES_MAX, f"{what} has {part.bytes()} bytes")
    need(part.offset >= 0 and part.begin() >= 0 and part.begin() + part.bytes() <= part.page_count * PAGE_BYTES,
         f"{what} is not within its extent")
    need(len(part.crcs) == len(part.pages()), f"{what} has {len(part.crcs)} checksums for {len(part.pages())} pages")
    if part.kind == POOL:
        need(part.offset == 0 and part.page_count in POOL_PAGES, f"{what}: a pool of {part.page_count} pages, "
             f"offset {part.offset}")
    else:
        need(not part.downward, f"{what} is downward in a run")


def parts_value(value, entry_bytes, kinds):
    cursor = Cursor(value)
    cursor.version()
    out, end = [], 0
    while cursor.rest():
        out += group(cursor, entry_bytes)
    need(out, "a row without parts")
    for part in out:
        need(part.kind in kinds, f"part {part.id} lies in an extent of kind {part.kind}")
        need(part.runs[0][0] >= end, f"part {part.id} does not begin above the part before")
        end = sum(part.runs[-1])
    return out


def evicted_value(value):
    cursor = Cursor(value)
    cursor.version()
    out = positions(cursor)
    cursor.end()
    return out


def index_value(value):
    """-> (stale, entries, row), or None: the record in the run counts no more."""
    cursor = Cursor(value)
    cursor.version()
    stale = cursor.byte()
    need(stale <= 2, f"stale byte {stale}")
    out = None if stale == 2 else (bool(stale), cursor.varint(), cursor.bytes())
    cursor.end()
    return out


def run_value(value):
    cursor = Cursor(value)
    cursor.version()
    flags = cursor.byte()
    need(flags < 2, f"index run flags {flags}")
    out = Run(bool(flags), cursor.varint(), cursor.varint(), [])
    if flags and not out.record_bytes and not out.records:
        cursor.end()
        return out
    need(16 <= out.record_bytes <= PART_BYTES_MAX, f"index records of {out.record_bytes} bytes")
    out.parts = parts_value(value[cursor.at:], out.record_bytes, (INDEX_RUN,))
    check_run_parts(out)
    return out


def check_run_parts(run):
    """Side by side in one extent, without a hole between records or bytes."""
    records = 0
    for part in run.parts:
        need(part.extent() == run.parts[0].extent(), f"part {part.id} lies in another extent than its run")
        need(part.runs == [(records, part.count())] and part.offset == records * run.record_bytes,
             f"part {part.id} is not where record {records} of its run begins")
        records += part.count()
    need(records == run.records, f"parts for {records} of {run.records} index records")


def links_value(value):
    cursor = Cursor(value)
    cursor.version()
    out = [(cursor.varint(), cursor.count(1, 65535, "link count")) for _ in range(cursor.count(1, 8, "links"))]
    cursor.end()
    need(out == sorted(out, key=lambda link: -link[1]), "links not strongest first")
    return out


def pages_value(value):
    cursor = Cursor(value)
    cursor.version()
    bits = cursor.take(32)
    cursor.end()
    need(any(bits), "an allocation record without a page")
    return [8 * b + i for b in range(32) for i in range(8) if bits[b] >> i & 1]


def next_id_value(value):
    cursor = Cursor(value)
    cursor.version()
    out = cursor.varint()
    cursor.end()
    return out


def profile_value(value):
    cursor = Cursor(value)
    cursor.version()
    out = {"device": cursor.bytes().decode(), "latency_us": cursor.varint(), "knee_bytes": cursor.varint(),
           "gap_bytes": cursor.varint(), "queue_depth": cursor.varint()}
    for name in ("by_size", "by_depth"):
        out[name] = [(cursor.varint(), cursor.varint(), cursor.varint())
                     for _ in range(cursor.count(0, cursor.rest(), "points"))]
    cursor.end()
    return out


def index_records(entries):
    """The records of an index run's part -> [((head, cluster), (stale, entries, row)), ...]."""
    out = []
    for record in entries:
        cluster, count, head, size = struct.unpack_from("<QIhH", record)
        row = record[16:]
        need(head >= -1 and size // 2 <= len(row) and not any(row[size // 2:]), f"index record {record.hex()}")
        need(not out or out[-1][0] < (head, cluster), f"index record of head {head} cluster {cluster} is not in order")
        out.append(((head, cluster), (bool(size & 1), count, row[:size // 2])))
    return out


def keyed(pattern, data, what):
    need(len(data) == struct.calcsize(pattern), f"a key of {len(data)} bytes in {what}: {data.hex()}")
    return struct.unpack(pattern, data)


def segment_key(data):
    """-> (segment, kind, block of token ids or None)."""
    segment, kind, *block = keyed(">QcI" if data[8:9] == b"t" else ">Qc", data, "segments")
    need(kind in b"hst", f"key kind {kind} in segments")
    return segment, kind.decode(), block[0] if block else None


def cluster_key(data):
    """-> (segment, layer, head, kind, cluster)."""
    segment, layer, head, kind, cluster = keyed(">QHHcQ", data, "clusters")
    need(kind in b"pmec", f"key kind {kind} in clusters")
    return segment, layer, head - 1, kind.decode(), cluster - 1


def index_key(data):
    segment, layer, head, cluster = keyed(">QHHQ", data, "index or coretrieval")
    return segment, layer, head - 1, cluster
