// Builds GGUF bytes piece by piece, so that tests can make every kind of malformed file. Correct
// files come from tests/tools/gguf_writer.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

class GgufBytes {
 public:
  template <typename T>
  GgufBytes& Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufBytes& String(std::string_view text) {
    Number<std::uint64_t>(text.size());
    bytes_.append(text);
    return *this;
  }
  GgufBytes& Header(std::uint64_t tensor_count, std::uint64_t key_count,
                    std::uint32_t version = 3) {
    bytes_.append("GGUF");
    return Number(version).Number(tensor_count).Number(key_count);
  }
  GgufBytes& Key(std::string_view key, GgufValueType type) {
    return String(key).Number(static_cast<std::uint32_t>(type));
  }
  GgufBytes& ArrayKey(std::string_view key, GgufValueType type, std::uint64_t count) {
    return Key(key, GgufValueType::kArray).Number(static_cast<std::uint32_t>(type)).Number(count);
  }
  GgufBytes& Tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                    std::uint32_t type, std::uint64_t offset) {
    String(name).Number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) {
      Number(dim);
    }
    return Number(type).Number(offset);
  }
  GgufBytes& Pad(std::size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& Zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }

  const std::string& bytes() const { return bytes_; }
  absl::StatusOr<std::unique_ptr<GgufFile>> Parse() const {
    return GgufFile::Parse(std::as_bytes(std::span(bytes_)));
  }

 private:
  std::string bytes_;
};

}  // namespace cairn::compute
