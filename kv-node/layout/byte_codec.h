// ByteWriter and ByteReader: the primitives of row values. Varints are unsigned LEB128, at most 10
// bytes; fixed integers are little-endian. A reader that meets bytes it cannot have written becomes
// bad and stays so: check ok() once, at the end, and bound every count with Count before using it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::kv {

class ByteWriter {
 public:
  void Reserve(std::int64_t byte_count) { out_.reserve(static_cast<std::size_t>(byte_count)); }
  void Byte(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void Varint(std::int64_t value) {  // REQUIRES: value >= 0
    auto rest = static_cast<std::uint64_t>(value);
    while (rest >= 0x80) {
      Byte(static_cast<std::uint8_t>(rest | 0x80));
      rest >>= 7;
    }
    Byte(static_cast<std::uint8_t>(rest));
  }
  void Fixed32(std::uint32_t value) {
    for (int i = 0; i < 4; ++i) Byte(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void Bytes(std::string_view bytes) {
    Varint(static_cast<std::int64_t>(bytes.size()));
    out_.append(bytes);
  }
  void Raw(std::string_view bytes) { out_.append(bytes); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  std::int64_t remaining() const { return static_cast<std::int64_t>(rest_.size()); }
  void MarkBad() {
    ok_ = false;
    rest_ = {};
  }

  std::uint8_t Byte() {
    if (rest_.empty()) {
      MarkBad();
      return 0;
    }
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::int64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const std::uint8_t byte = Byte();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return static_cast<std::int64_t>(value);
    }
    MarkBad();
    return 0;
  }
  // A varint of at most `max`.
  std::int64_t Count(std::int64_t max) {
    const std::int64_t value = Varint();
    if (value <= max) return value;
    MarkBad();
    return 0;
  }
  std::uint32_t Fixed32() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(Byte()) << (8 * i);
    return value;
  }
  std::string_view Bytes(std::int64_t max) { return Raw(Count(max)); }
  std::string_view Raw(std::int64_t count) {
    if (count > remaining()) {
      MarkBad();
      return {};
    }
    const std::string_view bytes = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(static_cast<std::size_t>(count));
    return bytes;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace cairn::kv
