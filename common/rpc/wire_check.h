// Checks of numbers and byte strings that came over a socket. Each names the field, what it is and
// what it must be, so that the sender can find the mistake. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/kv/v1/kv.pb.h"
#include "common/base/range.h"
#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::rpc {

namespace pb = ::cairn::kv::v1;

// All INVALID_ARGUMENT naming `field`.
using ::cairn::CheckBetween;
absl::Status CheckBytesMax(std::string_view field, const std::string& bytes,
                           std::int64_t bytes_max);
absl::Status CheckCountMax(std::string_view field, std::int64_t count, std::int64_t count_max);
absl::Status CheckLayer(std::int64_t layer);
absl::Status CheckHead(std::int64_t head);
// Ids count from 1.
absl::Status CheckId(std::string_view field, std::int64_t id);
// The bytes of `position_count` entries: a multiple of it, and none without positions.
absl::Status CheckEntryBytes(std::string_view field, std::int64_t bytes,
                             std::int64_t position_count);

absl::StatusOr<KvFormat> FormatFromProto(std::string_view field, std::int64_t number);
absl::StatusOr<Positions> PositionsFromProto(std::string_view field,
                                             const pb::Positions& positions);
void PositionsToProto(const Positions& positions, pb::Positions* out);

// "clusters[3]": what a message about one element of a repeated field starts with.
std::string Element(std::string_view field, int index);

}  // namespace cairn::rpc
