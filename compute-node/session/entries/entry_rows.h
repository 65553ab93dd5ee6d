// Entries as the rows of floats that a policy looks at.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/kv/messages.h"
#include "compute-node/session/reading/cluster_heads.h"

namespace cairn::compute {

// Whether a policy looks at values beside keys.
enum class WithValues : bool { kNo, kYes };

// Appends the keys and, with kYes, the values of a cluster's entries: of each entry those of each
// of the cluster's heads, head_dim numbers each.
void AppendRows(std::span<const std::byte* const> entries, const EntryLayout& layout,
                const ClusterHeads& heads, WithValues with_values, std::vector<float>& keys,
                std::vector<float>& values);

}  // namespace cairn::compute
