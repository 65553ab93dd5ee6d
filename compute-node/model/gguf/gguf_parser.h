// GgufParser: the walk over a GGUF file's bytes that fills a GgufFile. Used by gguf.cc only.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

// An unaligned little-endian number.
template <typename T>
T LoadGgufNumber(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

// Bytes of one value; 0 for strings and arrays, whose values differ in size, and for numbers that
// are no type.
std::uint64_t GgufFixedValueBytes(std::uint32_t type);

// Bytes of `count` checked elements at `data`, strings with their lengths.
std::uint64_t GgufElementsBytes(GgufValueType type, std::int64_t count, const std::byte* data);

// Walks the bytes once, front to back. `position_` never passes `data_.size()`.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> data, GgufFile& file) : data_(data), file_(file) {}

  absl::Status Parse();

 private:
  std::uint64_t remaining() const { return data_.size() - position_; }
  const std::byte* here() const { return data_.data() + position_; }

  template <typename T>
  absl::Status Take(T& value, std::string_view what) {
    if (remaining() < sizeof(T)) {
      return InvalidArgument(
          "read {}: the file ends at byte {}, {} bytes too early; it is truncated", what,
          data_.size(), sizeof(T) - remaining());
    }
    value = LoadGgufNumber<T>(here());
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status TakeString(std::string_view& text, std::uint64_t bytes_max, std::string_view what);
  absl::Status ParseHeader(std::uint64_t& tensor_count, std::uint64_t& key_count);
  absl::Status ParseValue(std::uint64_t index);
  absl::Status SkipElements(GgufValueType type, std::uint64_t count, const std::string& what);
  absl::Status ReadAlignment();
  absl::Status ParseTensorInfo(std::uint64_t index);
  absl::Status TakeDims(GgufTensor& tensor, const std::string& what);
  absl::Status PlaceTensors();

  std::span<const std::byte> data_;
  std::uint64_t position_ = 0;
  GgufFile& file_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace cairn::compute
