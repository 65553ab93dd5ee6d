#include "kv-node/util/finding.h"

#include <array>

#include "common/base/random_bytes.h"

namespace cairn::kv {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 20> kNames = {"superblock",
                                                     "metadata",
                                                     "row",
                                                     "next_id",
                                                     "missing",
                                                     "chain",
                                                     "orphan",
                                                     "orphan_rows",
                                                     "allocation",
                                                     "page_unallocated",
                                                     "page_unreferenced",
                                                     "extent",
                                                     "part",
                                                     "part_overlap",
                                                     "page_damaged",
                                                     "page_unreadable",
                                                     "index_run",
                                                     "session",
                                                     "positions",
                                                     "tokens"};
static_assert(static_cast<std::size_t>(FindingKind::kTokens) + 1 == kNames.size());

}  // namespace

std::string RowName(Family family, std::string_view key) {
  return fmt::format("{}/{}", FamilyName(family), ToHex(key));
}

std::string FormatFinding(const Finding& finding) {
  std::string out = fmt::format("finding kind={}", kNames[static_cast<std::size_t>(finding.kind)]);
  if (finding.session.value() != 0) out += fmt::format(" session={}", finding.session);
  if (finding.segment.value() != 0) out += fmt::format(" segment={}", finding.segment);
  if (finding.cluster) {
    out += fmt::format(" layer={} head={} cluster={}", finding.cluster->layer,
                       finding.cluster->head, finding.cluster->cluster_id);
  }
  if (finding.part.value() != 0) out += fmt::format(" part={}", finding.part);
  if (finding.page >= 0) out += fmt::format(" page={}", finding.page);
  if (finding.page >= 0 && finding.page_count > 1) {
    out += fmt::format(" pages={}", finding.page_count);
  }
  if (!finding.row.empty()) out += fmt::format(" row={}", finding.row);
  std::string reason = finding.reason;
  for (char& c : reason) {
    if (c == '"' || c == '\n') c = '\'';
  }
  return out + fmt::format(" reason=\"{}\"", reason);
}

}  // namespace cairn::kv
