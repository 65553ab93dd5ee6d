#include "compute-node/session/entries/entry_rows.h"

#include "compute-node/kernels/kv_entry.h"

namespace cairn::compute {

void AppendRows(std::span<const std::byte* const> entries, const EntryLayout& layout,
                WithValues with_values, std::vector<float>& keys, std::vector<float>& values) {
  const std::size_t dim = static_cast<std::size_t>(layout.head_dim);
  const bool keeps_values = with_values == WithValues::kYes;
  std::size_t at = keys.size();
  std::size_t value_at = values.size();
  keys.resize(at + entries.size() * dim);
  if (keeps_values) values.resize(value_at + entries.size() * dim);
  std::vector<float> unwanted(keeps_values ? 0 : dim);
  for (const std::byte* entry : entries) {
    const std::span<float> value =
        keeps_values ? std::span(values).subspan(value_at, dim) : std::span(unwanted);
    LoadKvEntry(entry, layout.kv_format, std::span(keys).subspan(at, dim), value);
    at += dim;
    value_at += dim;
  }
}

}  // namespace cairn::compute
