// ByteWriter and ByteReader: the primitives of row values. Varints are unsigned LEB128, at most 10
// bytes; fixed integers are little-endian. A reader that meets bytes it cannot have written becomes
// bad and stays so: check ok() once, at the end, and bound every count with Count before using it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace cairn::kv {

class ByteWriter {
 public:
  ByteWriter() = default;
  // Of a value that begins with its format's version.
  explicit ByteWriter(std::uint8_t version) { Byte(version); }

  void Reserve(std::int64_t byte_count) { out_.reserve(static_cast<std::size_t>(byte_count)); }
  void Byte(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void Varint(std::int64_t value) {  // REQUIRES: value >= 0
    auto rest = static_cast<std::uint64_t>(value);
    if (rest < 0x80) return Byte(static_cast<std::uint8_t>(rest));
    std::array<char, 10> bytes;
    std::size_t count = 0;
    for (; rest >= 0x80; rest >>= 7) bytes[count++] = static_cast<char>(rest | 0x80);
    bytes[count++] = static_cast<char>(rest);
    out_.append(bytes.data(), count);
  }
  void Fixed32(std::uint32_t value) {
    std::array<char, 4> bytes;
    for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    out_.append(bytes.data(), bytes.size());
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
  // Of a value that begins with this version; another one is bad.
  ByteReader(std::string_view bytes, std::uint8_t version) : rest_(bytes) {
    if (Byte() != version) MarkBad();
  }

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
    // Most take one byte.
    if (rest_.empty() || static_cast<std::uint8_t>(rest_.front()) >= 0x80) return LongVarint();
    const char byte = rest_.front();
    rest_.remove_prefix(1);
    return byte;
  }
  // A varint of at most `max`.
  std::int64_t Count(std::int64_t max) {
    const std::int64_t value = Varint();
    if (value <= max) return value;
    MarkBad();
    return 0;
  }
  std::uint32_t Fixed32() {
    const std::string_view bytes = Raw(4);
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
    }
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
  std::int64_t LongVarint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const std::uint8_t byte = Byte();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return static_cast<std::int64_t>(value);
    }
    MarkBad();
    return 0;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace cairn::kv
