// Ways to damage the store of store_fixture.h, each with the finding that must name it.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/unit/util/store_fixture.h"

namespace cairn::kv {

// What is left of the three sessions after a repair.
struct Left {
  std::int64_t talk_tokens;  // -1: dropped
  std::int64_t fork_tokens;
  std::int64_t alone_tokens;
};

class DamagedStoreTest : public StoreTest {
 public:
  using Edit = std::function<void(DamagedStoreTest&, MetaReader&, MetaBatch&)>;
  struct Damage {
    std::string name;
    std::string finding;  // a piece of the line that must be there
    Edit edit;
    Left left;
    friend void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }
  };

  // ---- what edits are made of ----
  static Edit Garble(Family family,
                     const std::function<std::string(DamagedStoreTest&, MetaReader&)>& key) {
    return [family, key](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
      const std::string row = key(test, reader);
      std::string value = *reader.Get(family, row).value();
      value.empty() ? value.push_back('x') : static_cast<void>(value[0] ^= 0x40);
      batch.Put(family, row, value);
    };
  }
  static Edit Remove(Family family,
                     const std::function<std::string(DamagedStoreTest&, MetaReader&)>& key) {
    return [family, key](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
      batch.Delete(family, key(test, reader));
    };
  }
  // Changes the first parts row of a segment.
  static Edit ChangePart(const std::function<void(StoredPart&)>& change) {
    return [change](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
      const SegmentId segment = test.OpenSegmentOf(reader, test.talk_);
      const Row row = ClusterRows(reader, segment, ClusterRowKind::kParts).front();
      std::vector<StoredPart> parts = test.PartsIn(row);
      change(parts.back());
      batch.Put(Family::kClusters, row.first, test.PartsValue(parts));
    };
  }
  static Edit ChangeSegment(bool sealed_one, const std::function<void(SegmentRow&)>& change) {
    return [=](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
      const SegmentId segment = sealed_one ? test.sealed_ : test.OpenSegmentOf(reader, test.talk_);
      SegmentRow row =
          *DecodeSegmentRow(*reader.Get(Family::kSegments, SegmentHeadKey(segment)).value());
      change(row);
      batch.Put(Family::kSegments, SegmentHeadKey(segment), EncodeSegmentRow(row));
    };
  }

  // ---- keys ----
  static std::string SealedHead(DamagedStoreTest& test, MetaReader&) {
    return SegmentHeadKey(test.sealed_);
  }
  static std::string OpenHead(DamagedStoreTest& test, MetaReader& reader) {
    return SegmentHeadKey(test.OpenSegmentOf(reader, test.talk_));
  }
  static std::string OpenPolicy(DamagedStoreTest& test, MetaReader& reader) {
    return SegmentPolicyKey(test.OpenSegmentOf(reader, test.talk_));
  }
  static std::string OpenTokens(DamagedStoreTest& test, MetaReader& reader) {
    return SegmentTokensKey(test.OpenSegmentOf(reader, test.talk_), 0);
  }
  template <ClusterRowKind kKind>
  static std::string OpenCluster(DamagedStoreTest& test, MetaReader& reader) {
    return ClusterRows(reader, test.OpenSegmentOf(reader, test.talk_), kKind).front().first;
  }
  static std::string SealedParts(DamagedStoreTest& test, MetaReader& reader) {
    return ClusterRows(reader, test.sealed_, ClusterRowKind::kParts).front().first;
  }
  static std::string OpenIndex(DamagedStoreTest& test, MetaReader& reader) {
    return RowsOf(reader, Family::kIndex, SegmentPrefix(test.OpenSegmentOf(reader, test.talk_)))
        .front()
        .first;
  }
  static std::string OpenIndexRun(DamagedStoreTest& test, MetaReader& reader) {
    return IndexRunKey(test.OpenSegmentOf(reader, test.talk_), 1);
  }
  static std::string OpenLinks(DamagedStoreTest& test, MetaReader& reader) {
    return LinkRowKey(test.OpenSegmentOf(reader, test.talk_), {0, 0, ClusterId(10)});
  }
  static std::string OpenRegion(DamagedStoreTest& test, MetaReader& reader) {
    return RowsOf(reader, Family::kPools, SegmentPrefix(test.OpenSegmentOf(reader, test.talk_)))
        .front()
        .first;
  }
  static std::string TalkRow(DamagedStoreTest& test, MetaReader&) {
    return SessionKeyBytes(test.talk_);
  }
  static std::string NextId(DamagedStoreTest&, MetaReader&) { return std::string(kNextIdKey); }

  static const std::vector<Damage>& Damages();
};

}  // namespace cairn::kv
