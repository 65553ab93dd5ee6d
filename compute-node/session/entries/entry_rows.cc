#include "compute-node/session/entries/entry_rows.h"

#include "compute-node/kernels/kv_entry.h"

namespace cairn::compute {

void AppendRows(std::span<const std::byte* const> entries, const EntryLayout& layout,
                const ClusterHeads& heads, WithValues with_values, std::vector<float>& keys,
                std::vector<float>& values) {
  const std::size_t dim = static_cast<std::size_t>(layout.head_dim);
  const std::size_t floats = entries.size() * static_cast<std::size_t>(heads.count()) * dim;
  const bool keeps_values = with_values == WithValues::kYes;
  std::size_t at = keys.size();
  std::size_t value_at = values.size();
  keys.resize(at + floats);
  if (keeps_values) values.resize(value_at + floats);
  std::vector<float> unwanted(keeps_values ? 0 : dim);
  for (const std::byte* entry : entries) {
    for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
      const std::span<float> value =
          keeps_values ? std::span(values).subspan(value_at, dim) : std::span(unwanted);
      LoadKvEntry(heads.PartOf(head, entry), layout.kv_format, std::span(keys).subspan(at, dim),
                  value);
      at += dim;
      value_at += dim;
    }
  }
}

}  // namespace cairn::compute
