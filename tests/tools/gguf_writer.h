// GgufWriter writes GGUF version 3 files for tests: metadata in the order given, then tensors,
// streamed row by row so that a file larger than memory can be written. Independent of the reader
// in compute-node, which the tests check with it.
//
// Threading:  externally synchronised.
// Ownership:  the row sources are called during Write and must stay valid until then.
// Errors:     UNAVAILABLE, RESOURCE_EXHAUSTED and so on from the file system, with the path.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "tests/tools/tensor_encoding.h"

namespace cairn::test {

class GgufWriter {
 public:
  // Fills row `row` (of `shape[0]` values) of a tensor.
  using RowSource = std::function<void(int64_t row, std::span<float> values)>;

  void AddString(std::string_view key, std::string_view value);
  void AddU32(std::string_view key, uint32_t value);
  void AddF32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddStringArray(std::string_view key, std::span<const std::string> values);
  void AddF32Array(std::string_view key, std::span<const float> values);
  void AddI32Array(std::string_view key, std::span<const int32_t> values);

  // A value already in the file's form: `value` is the encoding of a value of type number `type`.
  void AddRaw(std::string_view key, uint32_t type, std::string_view value);

  // `shape` has the innermost dimension first, as in the file; its first element must be a multiple
  // of the type's block.
  void AddTensor(std::string_view name, std::vector<int64_t> shape, TensorType type,
                 RowSource source);

  // Replaces `path`.
  absl::Status WriteFile(const std::string& path) const;

  // The same bytes in memory.
  std::string ToString() const;

  // Part `index`, from 0, of this model split into `part_count` files: the first has all metadata,
  // each about as many tensors.
  GgufWriter Part(int64_t index, int64_t part_count) const;
  // PREFIX-00001-of-00003.gguf and so on. Returns the paths in `paths`.
  absl::Status WriteParts(const std::string& prefix, int64_t part_count,
                          std::vector<std::string>& paths) const;

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    TensorType type;
    RowSource source;
    int64_t row_count = 1;
    int64_t size_bytes = 0;
  };
  using Sink = std::function<absl::Status(std::span<const uint8_t>)>;

  void AddKey(std::string_view key, uint32_t type);
  std::string Header() const;
  absl::Status WriteTo(const Sink& sink) const;
  static absl::Status WriteTensor(const Tensor& tensor, const Sink& sink);

  int64_t metadata_count_ = 0;
  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace cairn::test
