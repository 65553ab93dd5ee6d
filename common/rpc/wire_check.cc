#include "common/rpc/wire_check.h"

#include <optional>
#include <utility>

namespace cairn::rpc {

absl::Status CheckBytesMax(std::string_view field, const std::string& bytes,
                           std::int64_t bytes_max) {
  if (static_cast<std::int64_t>(bytes.size()) <= bytes_max) return absl::OkStatus();
  return InvalidArgument("{} has {} bytes, more than {}", field, bytes.size(), bytes_max);
}

absl::Status CheckCountMax(std::string_view field, std::int64_t count, std::int64_t count_max) {
  if (count <= count_max) return absl::OkStatus();
  return InvalidArgument("{} has {} elements, more than {}", field, count, count_max);
}

absl::Status CheckLayer(std::int64_t layer) {
  return CheckBetween("layer", layer, 0, kLayerCountMax - 1);
}

absl::Status CheckHead(std::int64_t head) {
  return CheckBetween("head", head, kAllHeads, kHeadCountMax - 1);
}

absl::Status CheckId(std::string_view field, std::int64_t id) {
  if (id >= 1) return absl::OkStatus();
  return InvalidArgument("{} is {}: it must be at least 1", field, id);
}

absl::Status CheckEntryBytes(std::string_view field, std::int64_t bytes,
                             std::int64_t position_count) {
  const bool fits = position_count == 0 ? bytes == 0 : bytes > 0 && bytes % position_count == 0;
  if (fits) return absl::OkStatus();
  return InvalidArgument("{} has {} bytes: that is not {} entries of one size", field, bytes,
                         position_count);
}

absl::Status CheckNextIds(const google::protobuf::RepeatedField<std::int64_t>& ids) {
  constexpr std::int64_t kCountMax = std::int64_t{kLayerCountMax} * (kHeadCountMax + 1);
  CAIRN_RETURN_IF_ERROR(CheckCountMax("next_cluster_ids", ids.size(), kCountMax));
  for (const std::int64_t id : ids) {
    CAIRN_RETURN_IF_ERROR(CheckBetween("next_cluster_ids", id, 0, INT64_MAX));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvFormat> FormatFromProto(std::string_view field, std::int64_t number) {
  const std::optional<KvFormat> format = KvFormatFromNumber(number);
  if (!format) {
    return InvalidArgument("{} is {}: this build knows F32 (1), F16 (2), Q8 (3) and Q4 (4)", field,
                           number);
  }
  return *format;
}

absl::StatusOr<Positions> PositionsFromProto(std::string_view field,
                                             const pb::Positions& positions) {
  if (positions.starts_size() != positions.lengths_size()) {
    return InvalidArgument("{} has {} starts but {} lengths", field, positions.starts_size(),
                           positions.lengths_size());
  }
  Positions::Runs runs;
  runs.reserve(static_cast<std::size_t>(positions.starts_size()));
  for (int i = 0; i < positions.starts_size(); ++i) {
    runs.push_back({positions.starts(i), positions.lengths(i)});
  }
  absl::StatusOr<Positions> out = Positions::FromRuns(std::move(runs));
  if (!out.ok()) return Annotate(out.status(), field);
  return out;
}

void PositionsToProto(const Positions& positions, pb::Positions* out) {
  const auto count = static_cast<int>(positions.runs().size());
  out->mutable_starts()->Reserve(count);
  out->mutable_lengths()->Reserve(count);
  for (const Positions::Run& run : positions.runs()) {
    out->add_starts(run.start);
    out->add_lengths(run.length);
  }
}

}  // namespace cairn::rpc
