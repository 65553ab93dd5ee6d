#include "kv-node/util/store_check.h"

#include <algorithm>
#include <functional>
#include <set>

#include "common/base/fail_point.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/layout/superblock.h"
#include "kv-node/meta/sequence_check.h"
#include "kv-node/util/segment_check.h"
#include "kv-node/util/session_check.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kIdBytes = 8;
// Pages whose second owner is looked up; more say nothing new.
constexpr std::size_t kClashingPagesMax = 4096;

// Of a row of a segment, whose key begins as that of a session does.
absl::StatusOr<SegmentId> OwnerOf(std::string_view key) {
  if (key.size() <= kIdBytes) return DataLoss("the key is too short");
  CAIRN_ASSIGN_OR_RETURN(const SessionId number, ParseSessionKey(key.substr(0, kIdBytes)));
  return SegmentId(number.value());
}

class StoreCheck {
 public:
  StoreCheck(const StoreView& store, const FindingSink& sink)
      : store_(store),
        sink_(sink),
        allocated_(store.page_count, kFirstDataPage),
        named_(std::make_shared<FreeMap>(store.page_count, kFirstDataPage)) {}

  absl::StatusOr<StoreSurvey> Run() {
    ReadConfig();
    ReadReserved();
    CAIRN_RETURN_IF_ERROR(ReadSessions());
    CAIRN_RETURN_IF_ERROR(ReadSegments());
    ReadOwners(Family::kClusters);
    ReadOwners(Family::kIndex);
    ReadOwners(Family::kRuns);
    ReadLinks();
    ReadAllocation();
    CheckSegmentLinks();
    CheckSessionLinks();
    FindOrphans();
    CheckSegments();
    CheckSessions();
    CheckNextId();
    survey_.allocated_page_count = allocated_.used_count() - kFirstDataPage;
    return std::move(survey_);
  }

 private:
  void TellRow(Family family, std::string_view key, const absl::Status& status) {
    sink_({.kind = FindingKind::kRow, .reason = Message(status), .row = RowName(family, key)});
  }
  // A row that belongs to nothing.
  void Stray(Family family, std::string_view key, const absl::Status& status) {
    TellRow(family, key, status);
    if (survey_.stray_rows.size() < kStrayRowsMax) {
      survey_.stray_rows.emplace_back(family, std::string(key));
    }
  }
  // Visits all rows of a family; what stops the scan is a finding.
  template <typename Fn>
  void ScanAll(Family family, Fn&& visit) {
    const absl::Status scanned =
        store_.meta->Scan(family, "", [&](std::string_view key, std::string_view value) {
          visit(key, value);
          return absl::OkStatus();
        });
    if (scanned.ok()) return;
    survey_.incomplete = true;
    sink_({.kind = FindingKind::kMetadata,
           .reason = fmt::format("{}: {}", FamilyName(family), Message(scanned))});
  }
  absl::Status CheckCount() const {
    const auto count = static_cast<std::int64_t>(survey_.segments.size() + survey_.sessions.size());
    if (count <= kSegmentsMax) return absl::OkStatus();
    return ResourceExhausted("the store has more than {} sessions and segments", kSegmentsMax);
  }

  void ReadConfig();
  void ReadReserved();
  absl::Status ReadSessions();
  absl::Status ReadSegments();
  void ReadSegmentsRow(std::string_view key, std::string_view value);
  void ReadOwners(Family family);
  void ReadLinks();
  void ReadAllocation();
  void TellClashes(const std::set<std::int64_t>& pages);
  void CheckSegmentLinks();
  void CheckSessionLinks();
  void FindOrphans();
  void CheckSegments();
  void CheckSessions();
  void CheckNextId();

  const StoreView& store_;
  const FindingSink& sink_;
  FreeMap allocated_;                     // from the allocation records
  const std::shared_ptr<FreeMap> named_;  // from the extents that parts name
  StoreSurvey survey_;
};

void StoreCheck::ReadConfig() {
  ScanAll(Family::kConfig, [&](std::string_view key, std::string_view value) {
    if (key == kStoreIdKey) return;  // compared when the store was opened
    if (key.starts_with(kDeviceProfileKeyPrefix)) {
      // A damaged one may go: the next start measures again.
      const absl::Status profile = DecodeDeviceProfile(value).status();
      return profile.ok() ? void() : Stray(Family::kConfig, key, profile);
    }
    if (key != kNextIdKey) return Stray(Family::kConfig, key, DataLoss("no row has this key"));
    const absl::StatusOr<std::int64_t> next_id = DecodeNextId(value);
    if (!next_id.ok()) return TellRow(Family::kConfig, key, next_id.status());
    survey_.next_id = *next_id;
  });
}

void StoreCheck::ReadReserved() {
  for (const Family family : {Family::kApps, Family::kAdapters}) {
    ScanAll(family, [&](std::string_view key, std::string_view) {
      Stray(family, key, DataLoss("this release writes no row of this family"));
    });
  }
}

absl::Status StoreCheck::ReadSessions() {
  ScanAll(Family::kSessions, [&](std::string_view key, std::string_view value) {
    const absl::StatusOr<SessionId> id = ParseSessionKey(key);
    if (!id.ok()) return Stray(Family::kSessions, key, id.status());
    survey_.largest_id = std::max(survey_.largest_id, id->value());
    SessionEntry& entry = survey_.sessions[*id];
    const absl::StatusOr<SessionRow> row = DecodeSessionRow(value);
    if (!row.ok()) return TellRow(Family::kSessions, key, row.status());
    entry.readable = true;
    entry.segment = row->segment;
    entry.token_count = row->token_count;
  });
  return CheckCount();
}

absl::Status StoreCheck::ReadSegments() {
  ScanAll(Family::kSegments, std::bind_front(&StoreCheck::ReadSegmentsRow, this));
  return CheckCount();
}

void StoreCheck::ReadSegmentsRow(std::string_view key, std::string_view value) {
  const absl::Status form = ParseSegmentHeadKey(key).status();
  const absl::StatusOr<SegmentId> id = form.ok() ? OwnerOf(key) : form;
  if (!id.ok()) return Stray(Family::kSegments, key, id.status());
  survey_.largest_id = std::max(survey_.largest_id, id->value());
  SegmentEntry& entry = survey_.segments[*id];
  absl::Status status;
  if (key == SegmentHeadKey(*id)) {
    const absl::StatusOr<SegmentRow> row = DecodeSegmentRow(value);
    status = row.status();
    if (row.ok()) {
      entry.has_head = true;
      entry.parent = row->parent;
      entry.start = row->start;
      entry.token_count = row->token_count;
      entry.sealed = row->sealed;
      entry.has_checkpoint = row->has_checkpoint;
    }
  } else if (key == SegmentPolicyKey(*id)) {
    entry.has_policy = true;
    status = DecodePolicyRow(value).status();
  } else if (key.starts_with(SegmentTokensKey(*id, 0).substr(0, kIdBytes + 1)) &&
             key.size() == SegmentTokensKey(*id, 0).size()) {
    status = DecodeTokens(value).status();
  } else {
    status = DataLoss("a key of no kind");
  }
  if (status.ok()) return;
  entry.lost = true;
  TellRow(Family::kSegments, key, status);
}

// So that rows of segments that have no head are known; what the rows say is read by segment.
void StoreCheck::ReadOwners(Family family) {
  ScanAll(family, [&](std::string_view key, std::string_view) {
    const absl::StatusOr<SegmentId> id = OwnerOf(key);
    if (!id.ok()) return Stray(family, key, id.status());
    survey_.largest_id = std::max(survey_.largest_id, id->value());
    survey_.segments[*id];
  });
}

// A damaged one may go: it says where clusters are better placed, and nothing about what they hold.
void StoreCheck::ReadLinks() {
  ReadOwners(Family::kCoretrieval);
  ScanAll(Family::kCoretrieval, [&](std::string_view key_bytes, std::string_view value) {
    const absl::StatusOr<ClusterKey> key = ParseLinkRowKey(key_bytes);
    // A key without a segment was told with the owners.
    if (!key.ok() && key_bytes.size() <= kIdBytes) return;
    const absl::Status status = key.ok() ? DecodeLinks(value).status() : key.status();
    if (!status.ok()) Stray(Family::kCoretrieval, key_bytes, status);
  });
}

void StoreCheck::ReadAllocation() {
  std::set<std::int64_t> clashing;
  ScanAll(Family::kPools, [&](std::string_view key_bytes, std::string_view value) {
    const absl::StatusOr<ParsedRegionKey> key = ParseRegionKey(key_bytes);
    if (!key.ok()) return Stray(Family::kPools, key_bytes, key.status());
    survey_.largest_id = std::max(survey_.largest_id, key->segment.value());
    survey_.segments[key->segment];
    const absl::StatusOr<RegionBits> bits = DecodeRegion(value);
    if (!bits.ok()) return TellRow(Family::kPools, key_bytes, bits.status());
    for (std::int64_t i = 0; i < kRegionPages; ++i) {
      const PageIndex page(key->region * kRegionPages + i);
      if (!(*bits)[static_cast<std::size_t>(i)] || allocated_.MarkUsed(page, 1)) continue;
      if (page.value() >= kFirstDataPage && page.value() < store_.page_count) {
        if (clashing.size() < kClashingPagesMax) clashing.insert(page.value());
        continue;
      }
      sink_({.kind = FindingKind::kAllocation,
             .reason = "the record's page is not one that a segment can have",
             .segment = key->segment,
             .page = page.value()});
    }
  });
  if (!clashing.empty()) TellClashes(clashing);
}

void StoreCheck::TellClashes(const std::set<std::int64_t>& pages) {
  ScanAll(Family::kPools, [&](std::string_view key_bytes, std::string_view value) {
    const absl::StatusOr<ParsedRegionKey> key = ParseRegionKey(key_bytes);
    const absl::StatusOr<RegionBits> bits = DecodeRegion(value);
    if (!key.ok() || !bits.ok()) return;
    for (auto page = pages.lower_bound(key->region * kRegionPages);
         page != pages.end() && *page < (key->region + 1) * kRegionPages; ++page) {
      if (!(*bits)[static_cast<std::size_t>(*page % kRegionPages)]) continue;
      sink_({.kind = FindingKind::kAllocation,
             .reason = "the records of several segments have this page",
             .segment = key->segment,
             .page = *page});
    }
  });
}

void StoreCheck::CheckSegmentLinks() {
  for (auto& [id, entry] : survey_.segments) {
    if (!entry.has_head) continue;
    const auto lose = [&, &segment = entry, segment_id = id](FindingKind kind, std::string reason) {
      segment.lost = true;
      sink_({.kind = kind, .reason = std::move(reason), .segment = segment_id});
    };
    if (entry.has_checkpoint && !entry.has_policy) {
      lose(FindingKind::kMissing, "its checkpoint's policy state is not there");
    }
    if (entry.start > entry.token_count) {
      lose(FindingKind::kChain,
           fmt::format("starts at {} and ends at {}", entry.start, entry.token_count));
    }
    if (entry.parent.value() == 0) {
      if (entry.start != 0) {
        lose(FindingKind::kChain, fmt::format("has no parent and starts at {}", entry.start));
      }
      continue;
    }
    // Ids count up, and a parent is there before its child: so there is no loop either.
    if (entry.parent >= id) {
      lose(FindingKind::kChain, fmt::format("its parent {} is not older", entry.parent));
      continue;
    }
    const auto parent = survey_.segments.find(entry.parent);
    if (parent == survey_.segments.end() || !parent->second.has_head) {
      lose(FindingKind::kMissing, fmt::format("its parent {} is not there", entry.parent));
    } else if (!parent->second.sealed || entry.start <= parent->second.start ||
               entry.start > parent->second.token_count) {
      lose(FindingKind::kChain,
           fmt::format("starts at {}; its parent {} is {} and has {} to {}", entry.start,
                       entry.parent, parent->second.sealed ? "sealed" : "not sealed",
                       parent->second.start, parent->second.token_count));
    }
  }
}

void StoreCheck::CheckSessionLinks() {
  std::map<SegmentId, SessionId> owner_of;
  for (auto& [id, entry] : survey_.sessions) {
    if (!entry.readable) continue;
    const auto lose = [&, &session = entry, session_id = id](FindingKind kind, std::string reason) {
      session.lost = true;
      sink_({.kind = kind,
             .reason = std::move(reason),
             .session = session_id,
             .segment = session.segment});
    };
    const auto segment = survey_.segments.find(entry.segment);
    if (segment == survey_.segments.end() || !segment->second.has_head) {
      lose(FindingKind::kMissing, "the session's segment is not there");
      continue;
    }
    if (segment->second.sealed) lose(FindingKind::kChain, "the session's segment is sealed");
    if (!owner_of.emplace(entry.segment, id).second) {
      lose(FindingKind::kChain, "the session's segment is another session's too");
    }
    if (segment->second.token_count != entry.token_count) {
      lose(FindingKind::kChain, fmt::format("the session has {} tokens, its segment {}",
                                            entry.token_count, segment->second.token_count));
    }
  }
}

void StoreCheck::FindOrphans() {
  for (const auto& [id, entry] : survey_.sessions) {
    if (!entry.readable) continue;
    for (const SegmentId segment : survey_.ChainOf(entry.segment)) {
      survey_.segments[segment].needed = true;
    }
  }
  for (const auto& [id, entry] : survey_.segments) {
    if (!entry.has_head) {
      sink_({.kind = FindingKind::kOrphanRows,
             .reason = "rows of a segment that has no head row",
             .segment = id});
    } else if (!entry.needed && !FailPoint("verify: orphans pass")) {
      sink_({.kind = FindingKind::kOrphanSegment,
             .reason = "no session names it, nor a segment of a session",
             .segment = id});
    }
  }
}

void StoreCheck::CheckSegments() {
  for (const auto& [id, entry] : survey_.segments) {
    if (!entry.has_head) continue;
    const absl::StatusOr<SegmentRow> row = LoadSegmentRow(*store_.meta, id);
    if (row.ok()) CheckSegment(store_, id, *row, *named_, sink_, survey_);
  }
}

void StoreCheck::CheckSessions() {
  for (const auto& [id, entry] : survey_.sessions) {
    if (entry.readable && survey_.ReachesRoot(survey_.ChainOf(entry.segment))) {
      CheckSession(store_, id, named_, sink_, survey_);
    }
  }
}

void StoreCheck::CheckNextId() {
  if (survey_.next_id && *survey_.next_id > survey_.largest_id) return;
  if (!survey_.next_id && survey_.largest_id == 0) return;  // never opened
  sink_({.kind = FindingKind::kNextId,
         .reason = survey_.next_id ? fmt::format("the next free id is said to be {}; {} is in use",
                                                 *survey_.next_id, survey_.largest_id)
                                   : "the row is missing or damaged"});
}

}  // namespace

std::vector<SegmentId> StoreSurvey::ChainOf(SegmentId segment) const {
  std::vector<SegmentId> chain;
  for (auto found = segments.find(segment); found != segments.end() && found->second.has_head;
       found = segments.find(found->second.parent)) {
    if (!chain.empty() && found->first >= chain.back()) break;
    chain.push_back(found->first);
  }
  return chain;
}

bool StoreSurvey::ReachesRoot(const std::vector<SegmentId>& chain) const {
  return !chain.empty() && segments.at(chain.back()).parent.value() == 0;
}

absl::StatusOr<StoreSurvey> CheckStore(const StoreView& store, const FindingSink& sink) {
  return StoreCheck(store, sink).Run();
}

}  // namespace cairn::kv
