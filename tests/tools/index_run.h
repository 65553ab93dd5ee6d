// Index rows as an index run has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "common/kv/index_record.h"

namespace cairn::test {

// Records behind each other, each of the size of the largest.
inline std::string IndexRunOf(std::span<const IndexRow> rows) {
  std::size_t record_bytes = 0;
  for (const IndexRow& row : rows) {
    record_bytes = std::max(record_bytes, static_cast<std::size_t>(IndexRecordBytes(row)));
  }
  std::string run(rows.size() * record_bytes, '\0');
  std::span<std::byte> left = std::as_writable_bytes(std::span(run));
  for (const IndexRow& row : rows) {
    EncodeIndexRecord(row, left.first(record_bytes));
    left = left.subspan(record_bytes);
  }
  return run;
}

}  // namespace cairn::test
