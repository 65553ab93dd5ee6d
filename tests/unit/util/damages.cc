#include "tests/unit/util/damages.h"

namespace cairn::kv {
namespace {

constexpr Left kNothingLost{90, 80, 30};
constexpr Left kTalkGoesBack{64, 80, 30};  // to the sealed segment
constexpr Left kTalkDropped{-1, 80, 30};
constexpr Left kFamilyDropped{-1, -1, 30};  // all that stands on the sealed segment

}  // namespace

const std::vector<DamagedStoreTest::Damage>& DamagedStoreTest::Damages() {
  using Kind = ClusterRowKind;
  static const std::vector<Damage> damages = {
      // A row of each kind that does not decode.
      {"SessionRow", "kind=row row=sessions/", Garble(Family::kSessions, TalkRow), kTalkDropped},
      {"SegmentHead", "kind=row row=segments/", Garble(Family::kSegments, OpenHead), kTalkDropped},
      {"SealedHead", "kind=missing", Garble(Family::kSegments, SealedHead), kFamilyDropped},
      {"PolicyRow", "kind=row row=segments/", Garble(Family::kSegments, OpenPolicy), kTalkGoesBack},
      {"TokensRow", "kind=row row=segments/", Garble(Family::kSegments, OpenTokens), kTalkGoesBack},
      {"PartsRow", "kind=row segment=", Garble(Family::kClusters, OpenCluster<Kind::kParts>),
       kTalkGoesBack},
      {"SealedParts", "kind=row segment=", Garble(Family::kClusters, SealedParts), kFamilyDropped},
      {"CarriedRow", "kind=row segment=", Garble(Family::kClusters, OpenCluster<Kind::kCarried>),
       kTalkGoesBack},
      {"MaskRow", "kind=row segment=", Garble(Family::kClusters, OpenCluster<Kind::kMask>),
       kTalkGoesBack},
      {"EvictedRow", "kind=row segment=", Garble(Family::kClusters, OpenCluster<Kind::kEvicted>),
       kTalkGoesBack},
      {"IndexRow", "kind=row segment=", Garble(Family::kIndex, OpenIndex), kTalkGoesBack},
      {"IndexRunRow", "kind=row segment=", Garble(Family::kRuns, OpenIndexRun), kNothingLost},
      {"SealedIndexRunRow", "kind=row segment=",
       [](DamagedStoreTest& test, MetaReader&, MetaBatch& batch) {
         batch.Put(Family::kRuns, IndexRunKey(test.sealed_, 1), "x");
       },
       kNothingLost},
      {"IndexRunOfALayerThatIsNot", "kind=row segment=",
       [](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
         batch.Put(Family::kRuns, IndexRunKey(test.OpenSegmentOf(reader, test.talk_), 9),
                   *reader.Get(Family::kRuns, OpenIndexRun(test, reader)).value());
       },
       kNothingLost},
      {"LinkRow", "kind=row row=coretrieval/", Garble(Family::kCoretrieval, OpenLinks),
       kNothingLost},
      {"RegionRow", "kind=row row=pools/", Garble(Family::kPools, OpenRegion), kNothingLost},
      {"NextIdRow", "kind=row row=config/", Garble(Family::kConfig, NextId), kNothingLost},
      // A row that is gone.
      {"NoSessionRow", "kind=orphan segment=", Remove(Family::kSessions, TalkRow), kTalkDropped},
      {"NoSegmentHead", "kind=missing session=", Remove(Family::kSegments, OpenHead), kTalkDropped},
      {"NoSealedHead", "kind=orphan_rows", Remove(Family::kSegments, SealedHead), kFamilyDropped},
      {"NoPolicy", "kind=missing segment=", Remove(Family::kSegments, OpenPolicy), kTalkGoesBack},
      {"NoTokens", "lacks token block", Remove(Family::kSegments, OpenTokens), kTalkGoesBack},
      {"NoParts", "kind=positions session=", Remove(Family::kClusters, OpenCluster<Kind::kParts>),
       kTalkGoesBack},
      {"NoSealedParts", "kind=positions session=", Remove(Family::kClusters, SealedParts),
       kFamilyDropped},
      {"NoCarried", "kind=positions session=",
       Remove(Family::kClusters, OpenCluster<Kind::kCarried>), kTalkGoesBack},
      {"NoMask", "kind=session session=", Remove(Family::kClusters, OpenCluster<Kind::kMask>),
       kTalkGoesBack},
      {"NoEvicted", "kind=positions session=",
       Remove(Family::kClusters, OpenCluster<Kind::kEvicted>), kTalkGoesBack},
      {"NoRegion", "kind=page_unallocated", Remove(Family::kPools, OpenRegion), kNothingLost},
      {"NoNextId", "kind=next_id", Remove(Family::kConfig, NextId), kNothingLost},
      // Rows that decode and are wrong.
      {"LowNextId", "kind=next_id",
       [](DamagedStoreTest&, MetaReader&, MetaBatch& batch) {
         batch.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(2));
       },
       kNothingLost},
      {"OverlappingAllocation", "kind=allocation",
       [](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
         const std::string key = OpenRegion(test, reader);
         const std::string others = RegionKey(test.sealed_, ParseRegionKey(key)->region);
         batch.Put(Family::kPools, key,
                   EncodeRegion(*DecodeRegion(*reader.Get(Family::kPools, key).value()) |
                                *DecodeRegion(*reader.Get(Family::kPools, others).value())));
       },
       kNothingLost},
      {"AllocationOutside", "kind=allocation",
       [](DamagedStoreTest& test, MetaReader&, MetaBatch& batch) {
         RegionBits bits;
         bits.set(7);
         batch.Put(Family::kPools, RegionKey(test.sealed_, kStoreBytes / kPageBytes / kRegionPages),
                   EncodeRegion(bits));
       },
       kNothingLost},
      {"LeakedPage", "kind=page_unreferenced",
       [](DamagedStoreTest& test, MetaReader&, MetaBatch& batch) {
         RegionBits bits;
         bits.set(255);
         batch.Put(Family::kPools, RegionKey(test.sealed_, 3), EncodeRegion(bits));
       },
       kNothingLost},
      {"OrphanSegment", "kind=orphan segment=77",
       [](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
         const std::string head = *reader.Get(Family::kSegments, SealedHead(test, reader)).value();
         batch.Put(Family::kSegments, SegmentHeadKey(SegmentId(77)), head);
         batch.Put(Family::kSegments, SegmentPolicyKey(SegmentId(77)), EncodePolicyRow({}));
       },
       kNothingLost},
      {"LinkRowKeyOfNoKind", "kind=row row=coretrieval/",
       [](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
         batch.Put(Family::kCoretrieval, OpenLinks(test, reader) + "x", "x");
       },
       kNothingLost},
      {"RowOfAReservedFamily", "kind=row row=adapters/",
       [](DamagedStoreTest&, MetaReader&, MetaBatch& batch) {
         batch.Put(Family::kAdapters, "123456789", "x");
       },
       kNothingLost},
      {"KeyOfNoKind", "kind=row row=clusters/",
       [](DamagedStoreTest&, MetaReader&, MetaBatch& batch) {
         batch.Put(Family::kClusters, "short", "x");
       },
       kNothingLost},
      {"ExtentOutside", "kind=extent",
       ChangePart([](StoredPart& part) { part.first_page = PageIndex(kStoreBytes / kPageBytes); }),
       kTalkGoesBack},
      {"ExtentOfAnotherSegment", "kind=extent",
       [](DamagedStoreTest& test, MetaReader& reader, MetaBatch& batch) {
         const Row theirs = ClusterRows(reader, test.sealed_, ClusterRowKind::kParts).front();
         const Row mine =
             ClusterRows(reader, test.OpenSegmentOf(reader, test.talk_), ClusterRowKind::kParts)
                 .front();
         std::vector<StoredPart> parts = test.PartsIn(mine);
         const StoredPart other = test.PartsIn(theirs).front();
         parts.front().first_page = other.first_page;
         parts.front().page_count = other.page_count;
         batch.Put(Family::kClusters, mine.first, test.PartsValue(parts));
       },
       kTalkGoesBack},
      {"ChecksumMissing", "checksums for",
       ChangePart([](StoredPart& part) { part.crcs.pop_back(); }), kTalkGoesBack},
      {"ChecksumWrong", "kind=page_damaged",
       ChangePart([](StoredPart& part) { part.crcs.front() ^= 1; }), kTalkGoesBack},
      {"PartId", "kind=page_damaged",
       ChangePart([](StoredPart& part) { part.id = PartId(part.id.value() + 1000); }),
       kTalkGoesBack},
      {"PositionTwice", "kind=session session=", ChangePart([](StoredPart& part) {
         part.positions = Positions::Range(part.positions.first() - 1, part.positions.count());
       }),
       kTalkGoesBack},
      {"ParentUnsealed", "kind=chain segment=",
       ChangeSegment(true, [](SegmentRow& row) { row.sealed = false; }), kFamilyDropped},
      {"StartBeyondTheParent", "kind=chain segment=",
       ChangeSegment(false, [](SegmentRow& row) { row.start = 65; }), kTalkGoesBack},
      {"OpenSegmentSealed", "kind=chain session=",
       ChangeSegment(false, [](SegmentRow& row) { row.sealed = true; }), kTalkGoesBack},
      {"TokenCount", "kind=chain session=",
       ChangeSegment(false, [](SegmentRow& row) { row.token_count -= 1; }), kTalkGoesBack},
      {"OtherModel", "another model",
       ChangeSegment(false, [](SegmentRow& row) { row.key.rope_parameters = "other"; }),
       kTalkGoesBack},
      {"Loop", "is not older",
       ChangeSegment(true,
                     [](SegmentRow& row) {
                       row.parent = SegmentId(1000);
                       row.start = 1;
                     }),
       kFamilyDropped},
  };
  return damages;
}

}  // namespace cairn::kv
