#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

absl::Status PolicyOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(layout.Validate());
  if (part_bytes_max < 1) {
    return InvalidArgument("part_bytes_max is {}: it must be positive", part_bytes_max);
  }
  if (fetch_slice_bytes < 1 || fetch_slice_bytes > kFetchBytesMax) {
    return InvalidArgument("fetch_slice_bytes is {}: it must be 1 to {}", fetch_slice_bytes,
                           kFetchBytesMax);
  }
  if (group_size < 1) return InvalidArgument("group_size is {}: it must be positive", group_size);
  return selection.Validate();
}

absl::Status BasicPolicy::RestoreHeld(std::int32_t layer, const HeldEntry& held) {
  return InvalidArgument("policy {} holds nothing back, but layer {} has position {} held",
                         traits_.name, layer, held.position);
}

}  // namespace cairn::compute
