#!/usr/bin/env python3
"""An independent reader of a stopped store: by docs/on-disk-format.md, sharing no code with the KV node.

usage: store_reader.py DATA_DIR   prints what each session shows as JSON, and on stderr what is wrong

Exit code 0: whole; 1: something is wrong; 2: it could not be read at all. Needs `ldb` of Debian's rocksdb-tools, which
opens meta/ to read only; the directory is better a copy. Reads the whole extent file into memory, and is slow: a tool
for small stores and for questions about the format.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys

import store_rows as rows
from store_chain import Chain
from store_rows import PAGE_BYTES, StoreError, need

FAMILIES = ("sessions", "segments", "clusters", "pools", "index", "runs", "coretrieval", "config", "apps", "adapters")
DEFAULT_FAMILY = "default"
LDB_TIMEOUT_S = 60


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    table, crc = CRC_TABLE, 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def ldb_path():
    return shutil.which("ldb")


def ldb(meta, *arguments):
    done = subprocess.run([ldb_path(), f"--db={meta}", *arguments], capture_output=True, text=True,
                          errors="replace", timeout=LDB_TIMEOUT_S, check=False)
    need(done.returncode == 0, f"ldb {arguments} on {meta}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return done.stdout


def read_family(meta, family):
    """-> {key: value}, as RocksDB has them; its own block checksums are checked on the way."""
    out = {}
    for line in ldb(meta, f"--column_family={family}", "--hex", "scan").splitlines():
        match = re.fullmatch(r"0x([0-9A-F]*) : 0x([0-9A-F]*)", line)
        need(match, f"family {family}: ldb printed {line!r}")
        out[bytes.fromhex(match[1])] = bytes.fromhex(match[2])
    return out


def read_metadata(meta):
    """-> ({family: {key: value}}, number of the last change; None: the log of a killed daemon has more)."""
    listed = re.search(r"\{(.*)\}", ldb(meta, "list_column_families"))
    families = set(listed[1].split(", ")) if listed else set()
    need(families == {DEFAULT_FAMILY, *FAMILIES}, f"column families {sorted(families)}")
    sequence = re.search(r"last_sequence (\d+)", ldb(meta, "manifest_dump"))
    need(sequence, "ldb's manifest_dump tells no last_sequence")
    log_bytes = sum(entry.stat().st_size for entry in os.scandir(meta) if entry.name.endswith(".log"))
    return ({family: read_family(meta, family) for family in sorted(families)},
            None if log_bytes else int(sequence[1]))


def superblock_copy(page, number):
    """One copy's fields; a StoreError if it is damaged or of another version."""
    magic, version, page_bytes, sequence, store_id, pages, created, metadata = struct.unpack_from("<8sIIQ16sQQQ", page)
    crc, = struct.unpack_from("<I", page, PAGE_BYTES - 4)
    need(magic == b"CAIRNKV\0", f"superblock in page {number}: magic {magic}")
    need(crc == crc32c(bytes(page[:PAGE_BYTES - 4])), f"superblock in page {number}: its checksum fails")
    need(1 <= version <= 4, f"superblock in page {number}: format version {version}, 4 is known")
    need(page_bytes == PAGE_BYTES and sequence % 2 == number and not any(page[64:PAGE_BYTES - 4]),
         f"superblock in page {number}: a field that no writer makes")
    return {"version": version, "sequence": sequence, "store_id": store_id, "pages": pages, "created": created,
            "metadata_sequence": metadata}


class Store:
    """Everything that a store says. `problems` has what is wrong; a store without any is whole."""

    def __init__(self, extents, metadata, last_sequence):
        self.extents = extents
        self.metadata = metadata
        self.problems = []
        self.pages_checked = 0
        self.superblock = self._superblock()
        self.sessions, self.heads, self.policies, self.tokens = {}, {}, {}, {}
        self.parts, self.masks, self.evicted, self.carried = {}, set(), {}, {}
        self.index, self.runs, self.links, self.allocated = {}, {}, {}, {}
        self.profiles, self.next_id, self.damaged_parts = {}, 0, set()
        self._decode()
        self._check_metadata(last_sequence)
        self._check_places()
        self._check_pages()
        self.chains = {session: self._try(f"session {session}", Chain, self, session) for session in self.sessions}
        self._check_orphans()

    @classmethod
    def open(cls, directory):
        with open(os.path.join(directory, "extents.cairn"), "rb") as file:
            extents = bytearray(file.read())
        return cls(extents, *read_metadata(os.path.join(directory, "meta")))

    def problem(self, text):
        self.problems.append(text)

    def _try(self, where, function, *arguments):
        try:
            return function(*arguments)
        except StoreError as error:
            self.problem(f"{where}: {error}")
            return None

    def _superblock(self):
        need(len(self.extents) >= 2 * PAGE_BYTES, f"the extent file has {len(self.extents)} bytes")
        copies = [self._try("extent file", superblock_copy, self.extents[at:at + PAGE_BYTES], at // PAGE_BYTES)
                  for at in (0, PAGE_BYTES)]
        need(any(copies), f"both superblocks are damaged: {self.problems}")
        out = max((copy for copy in copies if copy), key=lambda copy: copy["sequence"])
        need(out["pages"] * PAGE_BYTES == len(self.extents), f"{out['pages']} pages in a file of {len(self.extents)}")
        return out

    def _decode(self):
        decoders = {"sessions": self._session, "segments": self._segment, "pools": self._pool, "index": self._index,
                    "runs": self._run, "coretrieval": self._links, "config": self._config}
        for family in ("apps", "adapters"):
            for key in self.metadata[family]:
                self.problem(f"{family}: a row {key.hex()} in a reserved family")
        for key in self.metadata[DEFAULT_FAMILY]:
            if key != b"clean_close":
                self.problem(f"default: a row {key.hex()}")
        for family, decode in decoders.items():
            for key, value in self.metadata[family].items():
                self._try(f"{family} {key.hex()}", decode, key, value)
        for key, value in self.metadata["clusters"].items():  # needs the layouts of the segments
            self._try(f"clusters {key.hex()}", self._cluster, key, value)

    def _session(self, key, value):
        self.sessions[rows.keyed(">Q", key, "sessions")[0]] = rows.session_value(value)

    def _segment(self, key, value):
        segment, kind, block = rows.segment_key(key)
        if kind == "h":
            self.heads[segment] = rows.head_value(value)
        elif kind == "s":
            self.policies[segment] = rows.policy_value(value)
        else:
            self.tokens[segment, block] = rows.tokens_value(value)

    def _layout(self, segment, layer, head):
        need(segment in self.heads, f"a row of segment {segment}, which has no head")
        out = self.heads[segment].layout
        need(layer < out.layers and -1 <= head < out.heads, f"layer {layer}, head {head} of {out}")
        return out

    def _cluster(self, key, value):
        segment, layer, head, kind, cluster = rows.cluster_key(key)
        entry_bytes = self._layout(segment, layer, head).entry_bytes(head)
        where = (segment, layer, head, cluster)
        if kind == "m":
            need(not value, "a mask with a value")
            self.masks.add(where)
        elif kind == "e":
            self.evicted[where] = rows.evicted_value(value)
        elif kind == "c":
            self.carried[where] = self._in_file(rows.parts_value(value, entry_bytes, (rows.LOG_RUN,)))
        else:
            self.parts[where] = self._in_file(
                rows.parts_value(value, entry_bytes, (rows.POOL, rows.LOG_RUN, rows.PACKED_RUN)))

    def _in_file(self, parts):
        for part in parts:
            need(2 <= part.first_page and part.first_page + part.page_count <= self.superblock["pages"],
                 f"part {part.id} lies in extent {part.extent()}, not within the file")
        return parts

    def _pool(self, key, value):
        segment, region = rows.keyed(">QI", key, "pools")
        for page in rows.pages_value(value):
            page += region * rows.REGION_PAGES
            need(2 <= page < self.superblock["pages"], f"page {page} is not one that can be allocated")
            need(page not in self.allocated, f"page {page} is of segment {self.allocated.get(page)} too")
            self.allocated[page] = segment

    def _index(self, key, value):
        where = rows.index_key(key)
        self._layout(*where[:3])
        self.index[where] = rows.index_value(value)

    def _run(self, key, value):
        where = rows.keyed(">QH", key, "runs")
        self._layout(*where, -1)
        run = rows.run_value(value)
        self._in_file(run.parts)
        self.runs[where] = run

    def _links(self, key, value):
        segment, layer, head, cluster = rows.index_key(key)
        self._layout(segment, layer, head)
        links = rows.links_value(value)
        others = [other for other, _ in links]
        need(len(set(others)) == len(others) and cluster not in others, "a cluster twice, or with itself")
        self.links[segment, layer, head, cluster] = links

    def _config(self, key, value):
        if key == b"next_id":
            self.next_id = rows.next_id_value(value)
        elif key == b"store_id":
            need(value == self.superblock["store_id"], f"store id {value.hex()} is not the extent file's")
        else:
            need(key.split(b"+")[0] == b"device_profile", f"a row {key}")
            self.profiles[key.decode()] = rows.profile_value(value)

    def _check_metadata(self, last_sequence):
        need_sequence = self.superblock["metadata_sequence"]
        if last_sequence is not None and last_sequence < need_sequence:
            self.problem(f"metadata: the last change is {last_sequence}, the superblock was told {need_sequence}")
        if b"store_id" not in self.metadata["config"]:
            self.problem("config: no store_id")
        for what, ids in (("session", self.sessions), ("segment", self.heads),
                          ("part", (part.id for _, part in self.all_parts()))):
            for number in ids:
                if number >= self.next_id:
                    self.problem(f"config: {what} {number} is not below next_id {self.next_id}")

        for segment, head in self.heads.items():
            if head.has_checkpoint and segment not in self.policies:
                self.problem(f"segment {segment} has a checkpoint and no policy state")

    def all_parts(self):
        """((segment, layer, head), part) for each row that names one; index runs with head None."""
        for table in (self.parts, self.carried):
            for where, parts in table.items():
                yield from ((where[:3], part) for part in parts)
        for (segment, layer), run in self.runs.items():
            yield from (((segment, layer, None), part) for part in run.parts)

    def _check_places(self):
        """Extents against the allocation records and each other; parts against each other."""
        owners, extents, ids = {}, {}, set()
        for owner, part in self.all_parts():
            if part.id in ids:
                self.problem(f"part {part.id} is there twice")
            ids.add(part.id)
            extents.setdefault(part.extent(), []).append((owner, part))
        for extent, inside in extents.items():
            self._check_extent(extent, inside)
            for page in range(extent[0], extent[0] + extent[1]):
                if page in owners:
                    self.problem(f"page {page} is in two extents")
                owners[page] = inside[0][0][0]
        for page in sorted(owners.keys() | self.allocated.keys()):
            if owners.get(page) != self.allocated.get(page):
                self.problem(f"page {page}: segment {owners.get(page)} names it, segment {self.allocated.get(page)} "
                             "has it allocated")

    def _check_extent(self, extent, inside):
        what = f"extent {extent}"
        if len({owner[0] for owner, _ in inside}) > 1:
            self.problem(f"{what} is in rows of several segments")
        ranges = sorted((part.begin(), part.begin() + part.bytes(), part.id) for _, part in inside)
        for (_, end, before), (begin, _, behind) in zip(ranges, ranges[1:]):
            if begin < end:
                self.problem(f"{what}: parts {before} and {behind} overlap")
        if extent[2] == rows.POOL and (len(inside) > 2 or len({part.downward for _, part in inside}) < len(inside)
                                       or len({owner for owner, _ in inside}) > 1):
            self.problem(f"{what}: a pool with parts at one end, or of several layers or heads")

    def page_is_right(self, part, number, begin, end):
        at = part.first_page * PAGE_BYTES
        seed = self.superblock["store_id"] + struct.pack("<QQ", part.id, number)
        return crc32c(seed + self.extents[at + begin:at + end]) == part.crcs[number]

    def _check_pages(self):
        for owner, part in self.all_parts():
            for number, begin, end in part.pages():
                self.pages_checked += 1
                if not self.page_is_right(part, number, begin, end):
                    self.damaged_parts.add(part.id)
                    self.problem(f"segment {owner[0]} layer {owner[1]} head {owner[2]} part {part.id} page {number}: "
                                 "its checksum fails")

    def _check_orphans(self):
        """Segments that no session needs."""
        needed = set()
        for session in self.sessions.values():
            segment = session.segment
            while segment in self.heads and segment not in needed:
                needed.add(segment)
                segment = self.heads[segment].parent
        for segment in sorted({*self.heads, *self.policies, *(segment for segment, _ in self.tokens)} - needed):
            self.problem(f"segment {segment} is not of a session")

    def entries(self, part):
        """The bytes of each entry of a part, in position order."""
        size, at = part.entry_bytes, part.first_page * PAGE_BYTES
        extent = self.extents[at:at + part.page_count * PAGE_BYTES]
        begins = ([len(extent) - (i + 1) * size for i in range(part.count())] if part.downward else
                  [part.offset + i * size for i in range(part.count())])
        return [bytes(extent[begin:begin + size]) for begin in begins]

    def index_records(self, part):
        return rows.index_records(self.entries(part))

    def to_json(self):
        return {
            "superblock": {name: value.hex() if isinstance(value, bytes) else value
                           for name, value in self.superblock.items()},
            "counts": {"sessions": len(self.sessions), "segments": len(self.heads),
                       "parts": sum(1 for _ in self.all_parts()), "pages_checked": self.pages_checked,
                       "pages_allocated": len(self.allocated)},
            "device_profiles": self.profiles,
            "sessions": {number: chain.to_json() for number, chain in self.chains.items() if chain},
        }


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    if not ldb_path():
        print("store_reader: no `ldb`: install Debian's rocksdb-tools", file=sys.stderr)
        return 2
    try:
        store = Store.open(arguments[0])
    except (StoreError, OSError) as error:
        print(f"store_reader: {error}", file=sys.stderr)
        return 2
    json.dump(store.to_json(), sys.stdout, indent=1)
    print()
    for text in store.problems:
        print(text, file=sys.stderr)
    return 1 if store.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
