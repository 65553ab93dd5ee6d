"""docs/on-disk-format.md is exact enough to write a reader from: the one here, which knows only that page, reads the
golden stores as golden_store_test.cc does, and notices whatever is changed in them.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/util/store_reader_test.py
Exit code 77: skipped, there is no `ldb` (Debian: rocksdb-tools).
"""
import functools
import hashlib
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import store_reader
import store_rows
from store_rows import PAGE_BYTES, StoreError

FOLDER = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(FOLDER, "..", "..", "..", "docs", "on-disk-format.md")
GOLDEN = ("store_v1.tar.gz", "store_v2.tar.gz", "store_v3.tar.gz", "store_v4.tar.gz")
SKIPPED = 77
SALT = 7  # of store_fixture.h, as the numbers below
LAYERS = HEADS = 2
TALK_CLUSTERS = {1: [*range(20), *range(60, 80)], 10: range(20, 35), 11: range(35, 55)}
FORK_CLUSTERS = {1: range(20), 2: range(20, 50), 5: range(50, 80)}
ALONE_CLUSTERS = {1: range(30)}
# Parts and their pages, as verify says.
PAGES_CHECKED = dict(zip(GOLDEN, ((84, 105), (86, 107), (86, 107), (86, 106))))


def entry_bytes(layer, head, position):
    """As EntryBytes of engine_harness.cc makes them."""
    x, out = SALT * 1000003 + layer * 8191 + (head + 1) * 131 + position, bytearray()
    for _ in range(2 * 40 * 2):
        x = (x * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
        out.append(x >> 56)
    return bytes(out)


def entries(layer, head, positions):
    return [(position, entry_bytes(layer, head, position)) for position in positions]


def setUpModule():  # pylint: disable=invalid-name
    """Most pages are the same ones again."""
    store_reader.crc32c = functools.lru_cache(maxsize=4096)(store_reader.crc32c)


class StoreCase(unittest.TestCase):
    """The golden stores' bytes and rows, read once. Each test changes a copy."""

    @classmethod
    def setUpClass(cls):
        cls.bytes = {}
        for name in GOLDEN:
            with tempfile.TemporaryDirectory(prefix="cairn-store-reader-") as folder:
                subprocess.run(["tar", "-xzf", os.path.join(FOLDER, "golden", name), "-C", folder], check=True)
                with open(os.path.join(folder, "extents.cairn"), "rb") as file:
                    extents = file.read()
                cls.bytes[name] = (extents, *store_reader.read_metadata(os.path.join(folder, "meta")))

    def store(self, name=GOLDEN[-1], extents=None, change=None):
        """`change(metadata)` edits a copy of the rows."""
        golden, metadata, sequence = self.bytes[name]
        metadata = {family: dict(rows) for family, rows in metadata.items()}
        if change:
            change(metadata)
        return store_reader.Store(bytearray(extents or golden), metadata, sequence)

    def problems(self, **changes):
        """Of the changed store; a store that cannot be read at all has one."""
        try:
            return self.store(**changes).problems
        except StoreError as error:
            return [str(error)]


class GoldenTest(StoreCase):
    def test_is_whole(self):
        for name in GOLDEN:
            store = self.store(name)
            self.assertEqual(store.problems, [])
            self.assertEqual(store.superblock["version"], int(name[7]))
            self.assertEqual((sum(1 for _ in store.all_parts()), store.pages_checked), PAGES_CHECKED[name])

    def expect(self, chain, clusters, carried=None, evicted=()):
        for layer in range(LAYERS):
            for head in range(HEADS):
                shown = {where[2]: found for where, found in chain.clusters.items() if where[:2] == (layer, head)}
                self.assertEqual(shown, {cluster: entries(layer, head, positions)
                                         for cluster, positions in clusters.items()})
                held = {where[2]: found for where, found in chain.carried.items() if where[:2] == (layer, head)}
                self.assertEqual(held, {-1: entries(layer, head, carried)} if carried else {})
                self.assertEqual(chain.evicted.get((layer, head), set()), set(evicted))
        self.assertEqual(len(chain.clusters), len(clusters) * LAYERS * HEADS)
        self.assertEqual(chain.tokens, [3 * i for i in range(chain.session.tokens)])

    def test_says_what_was_stored(self):
        for name in GOLDEN:
            chains = self.store(name).chains
            talk, fork, alone = (chains[session] for session in sorted(chains))
            self.expect(talk, TALK_CLUSTERS, carried=range(80, 90), evicted=range(55, 60))
            self.expect(fork, FORK_CLUSTERS)
            self.expect(alone, ALONE_CLUSTERS)
            self.assertEqual([len(chain.segments) for chain in (talk, fork, alone)], [2, 2, 1])
            self.assertEqual(talk.policy, {"version": 1, "state": b"state", "random_state": b"dice"})

    def test_index_rows_and_links(self):
        for name in GOLDEN:
            store = self.store(name)
            talk = store.chains[min(store.chains)]
            want = {(0, 0, 10): (False, 15, b"centroid")}
            if name != "store_v1.tar.gz":
                for head in range(HEADS):
                    want |= {(1, head, 1): (True, 20, b"sealed"), (1, head, 11): (True, 20, b"packed")}
                told = {(0, 0, 10): [(11, 64)]}  # before version 4 by the compute node, then counted
                links = told if name < "store_v4" else {(0, 0, 10): [(11, 12)], (0, 0, 11): [(10, 12)]}
                self.assertEqual({where[1:]: found for where, found in store.links.items()}, links)
            self.assertEqual(talk.index, want)

    def test_prints_positions_and_hashes(self):
        talk = self.store().to_json()["sessions"][1]["layers"][1]["1"]
        sha256 = hashlib.sha256(b"".join(entry for _, entry in entries(1, 1, TALK_CLUSTERS[1]))).hexdigest()
        self.assertEqual(talk["clusters"][1], {"positions": [[0, 20], [60, 20]], "sha256": sha256})


class DamageTest(StoreCase):
    def test_a_changed_byte_of_any_page_is_found(self):
        store = self.store()
        for _, part in store.all_parts():
            for number, begin, end in part.pages():
                for at in (begin, end - 1):
                    at += part.first_page * PAGE_BYTES
                    store.extents[at] ^= 0x10
                    damaged = [(other.id, page) for _, other in store.all_parts() if other.extent() == part.extent()
                               for page, low, high in other.pages()
                               if not store.page_is_right(other, page, low, high)]
                    store.extents[at] ^= 0x10
                    self.assertEqual(damaged, [(part.id, number)])

    def damaged(self, part, at=0):
        extents = bytearray(self.bytes[GOLDEN[-1]][0])
        extents[part.first_page * PAGE_BYTES + part.begin() + at] ^= 1
        return self.store(extents=extents)

    def test_a_changed_entry_is_told_and_its_cluster_lost(self):
        store = self.store()
        part, = (parts[0] for where, parts in store.parts.items() if where[1:] == (1, 0, 11))
        changed = self.damaged(part)
        self.assertEqual(len(changed.problems), 1)
        self.assertRegex(changed.problems[0], rf"segment 4 layer 1 head 0 part {part.id} page 0: its checksum fails")
        told = changed.to_json()["sessions"][1]["layers"][1]["0"]["clusters"]
        self.assertEqual(told[11], {"positions": [[35, 20]], "lost": True})
        self.assertIn("sha256", told[10])

    def test_index_rows_that_a_damaged_run_hides_are_gone(self):
        part = self.store().runs[4, 1].parts[0]
        changed = self.damaged(part)
        self.assertEqual(len(changed.problems), 1)
        self.assertEqual(set(changed.chains[1].index), {(0, 0, 10)})

    def test_bytes_of_another_place_or_store_fail(self):
        store = self.store()
        part = next(part for _, part in store.all_parts() if part.bytes() > PAGE_BYTES)
        number, begin, end = part.pages()[0]
        self.assertTrue(store.page_is_right(part, number, begin, end))
        part.id += 1
        self.assertFalse(store.page_is_right(part, number, begin, end))
        part.id -= 1
        store.superblock["store_id"] = bytes(16)
        self.assertFalse(store.page_is_right(part, number, begin, end))

    def test_a_damaged_superblock_is_told_and_the_other_counts(self):
        golden = self.bytes[GOLDEN[-1]][0]
        for page in (0, 1):
            extents = bytearray(golden)
            extents[page * PAGE_BYTES + 30] ^= 1
            store = self.store(extents=extents)
            self.assertEqual(len(store.problems), 1)
            self.assertIn(f"superblock in page {page}: its checksum fails", store.problems[0])
            self.assertEqual(store.superblock["sequence"] % 2, 1 - page)
            extents[(1 - page) * PAGE_BYTES + 4000] ^= 1
            self.assertIn("both superblocks are damaged", self.problems(extents=extents)[0])

    def test_a_newer_format_is_named(self):
        extents = bytearray(self.bytes[GOLDEN[-1]][0])
        for at in (0, PAGE_BYTES):
            struct.pack_into("<I", extents, at + 8, 5)
            struct.pack_into("<I", extents, at + PAGE_BYTES - 4,
                             store_reader.crc32c(bytes(extents[at:at + PAGE_BYTES - 4])))
        self.assertIn("format version 5, 4 is known", self.problems(extents=extents)[0])


class RowTest(StoreCase):
    NEEDED = ("sessions", "segments", "clusters", "pools", "config")  # a row of index, runs, links may go

    def each_row(self):
        for family, rows in self.bytes[GOLDEN[-1]][1].items():
            for key, value in rows.items():
                yield family, key, value

    def test_a_row_that_is_gone_is_missed(self):
        for family, key, _ in self.each_row():
            hidden = key[:8] == bytes(7) + b"\2" and key[12:13] == b"c"  # sealed: no session shows what it carried
            if family in self.NEEDED and not hidden:
                self.assertTrue(self.problems(change=lambda rows, f=family, k=key: rows[f].pop(k)),
                                f"{family} {key.hex()}")

    def test_a_row_that_ends_early_or_late_or_is_newer_is_refused(self):
        for family, key, value in self.each_row():
            if family == "default":
                continue
            newer = 2
            if family == "sessions":
                newer = store_rows.SESSION_ROW_VERSION + 1
            elif family == "segments" and key[8:] == b"h":
                newer = store_rows.HEAD_ROW_VERSION + 1
            # the first bytes of a list of groups or token ids may be one too: then what they name is missed
            for changed in {value[:at] for at in (1, len(value) // 2, len(value) - 1)} - {value} | {
                    value + b"\0", bytes([newer]) + value[1:]}:
                self.assertTrue(self.problems(change=lambda rows, f=family, k=key, v=changed: rows[f].update({k: v})),
                                f"{family} {key.hex()}: {changed.hex()}")

    def test_a_row_in_a_reserved_family_or_with_a_strange_key_is_told(self):
        for family in ("apps", "default", "sessions", "segments", "clusters", "pools", "index", "runs", "coretrieval",
                       "config"):
            self.assertEqual(len(self.problems(change=lambda rows, f=family: rows[f].update({b"?": b"\1"}))), 1, family)

    def test_metadata_that_is_behind_the_superblock_is_told(self):
        extents, metadata, sequence = self.bytes[GOLDEN[-1]]
        problems = store_reader.Store(bytearray(extents), metadata, sequence - 1).problems
        self.assertEqual(problems, [f"metadata: the last change is {sequence - 1}, the superblock was told {sequence}"])


class DocumentTest(unittest.TestCase):
    """The examples of the page itself."""

    @classmethod
    def setUpClass(cls):
        with open(DOCUMENT, encoding="utf-8") as file:
            cls.text = file.read()

    def test_worked_example(self):
        block = re.search(r"### Worked example.*?```\n(.*?)```", self.text, re.S)[1]
        value = bytes.fromhex("".join(re.match(r"((?:[0-9a-f]{2,8} ?)*)(?: |$)", line)[1]
                                      for line in block.splitlines()))
        first, second = store_rows.parts_value(value, 512, (store_rows.POOL, store_rows.LOG_RUN))
        self.assertEqual((first.kind, first.downward, first.id, first.extent()[:2], first.runs, first.crcs),
                         (store_rows.POOL, False, 80411, (212, 2), [(4100, 3), (4300, 2)], [0x11223344]))
        self.assertEqual((second.kind, second.id, second.extent()[:2], second.offset, second.runs, second.crcs),
                         (store_rows.LOG_RUN, 81002, (9000, 12), 1536, [(4711, 1)], [0xaabbccdd]))

    def test_pages_of_a_downward_part_count_from_its_end(self):
        part = store_rows.Part(store_rows.POOL, True, 1, 212, 2, 0, [(0, 10)], 512, [])
        self.assertEqual(part.pages(), [(0, 4096, 8192), (1, 3072, 4096)])

    def test_keys(self):
        keys = {name: bytes.fromhex(key) for name, key in
                re.findall(r"^\| ([^|]*) \| [^|]* \| `([0-9a-f ]{16,})` \|$", self.text, re.M)}
        self.assertEqual(len(keys), 8)
        decoded = [store_rows.keyed(">Q", keys.pop("session 258"), "sessions"),
                   store_rows.segment_key(keys.pop("head of segment 9")),
                   store_rows.segment_key(keys.pop("policy state of segment 9")),
                   store_rows.segment_key(keys.pop("token ids 4096 to 5119 of segment 9")),
                   store_rows.cluster_key(keys.pop("parts of cluster 57, layer 3, head 1")),
                   store_rows.keyed(">QH", keys.pop("index run of layer 3"), "runs"),
                   store_rows.keyed(">QI", keys.pop("allocation record of region 2"), "pools"),
                   *(store_rows.index_key(key) for key in keys.values())]
        self.assertEqual(decoded, [(258,), (9, "h", None), (9, "s", None), (9, "t", 4), (9, 3, 1, "p", 57), (9, 3),
                                   (9, 2), (9, 3, 1, 57)])


if __name__ == "__main__":
    if not store_reader.ldb_path():
        print("SKIPPED: no `ldb`, which reads the rows: install Debian's rocksdb-tools")
        sys.exit(SKIPPED)
    unittest.main()
