// GgufFile reads a GGUF container (version 2 or 3): metadata and tensors of one model, over a
// read-only mapping of the file, or of the files if the model was split, or over bytes in memory.
// Every count, length and offset is checked
// before it is used, so that a damaged or malicious file gives an error and never a read outside
// the file.
//
// Units:      dims are in elements, innermost (row length) first; offsets and sizes in bytes.
// Threading:  immutable after Open or Parse; safe from any thread.
// Ownership:  what it returns as string_view or span points into the mapping (Parse: into the
//             caller's bytes) and is valid as long as the GgufFile (and those bytes) are.
// Errors:     NOT_FOUND or PERMISSION_DENIED from opening; INVALID_ARGUMENT with the object and the
//             numbers for every malformed file; UNIMPLEMENTED for a tensor type that this reader
//             does not know. A file that somebody writes to while it is mapped shows in
//             CheckIntact; one that is cut short reads as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/gguf/file_watch.h"

namespace cairn::compute {

// Bounds on what a file may declare; a file beyond them is refused.
inline constexpr std::uint64_t kGgufTensorCountMax = 1 << 16;
inline constexpr std::uint64_t kGgufKeyCountMax = 1 << 16;
inline constexpr std::uint64_t kGgufKeyBytesMax = (1 << 16) - 1;
inline constexpr std::uint64_t kGgufTensorNameBytesMax = 63;
inline constexpr int kGgufDimCountMax = 4;
inline constexpr std::uint64_t kGgufAlignmentMax = 1 << 20;

// The format's own numbers.
enum class GgufValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

enum class GgufTensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ50 = 6,
  kQ51 = 7,
  kQ80 = 8,
  kQ81 = 9,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kQ8K = 15,
  kIq2Xxs = 16,
  kIq2Xs = 17,
  kIq3Xxs = 18,
  kIq1S = 19,
  kIq4Nl = 20,
  kIq3S = 21,
  kIq2S = 22,
  kIq4Xs = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIq1M = 29,
  kBF16 = 30,
  kTq10 = 34,
  kTq20 = 35,
  kMxfp4 = 39,
};

bool IsKnownGgufTensorType(GgufTensorType type);
std::string_view GgufValueTypeName(GgufValueType type);
std::string_view GgufTensorTypeName(GgufTensorType type);  // "Q8_0"

// Text of a file as errors and reports show it: at most 200 bytes, and no control characters, which
// a hostile file could use to play with a terminal.
std::string PrintableText(std::string_view text);

// How a tensor type stores a row: groups of `block_values` values in `block_bytes` bytes.
struct GgufBlockLayout {
  std::int64_t block_values;
  std::int64_t block_bytes;
};
GgufBlockLayout GgufTensorLayout(GgufTensorType type);

struct GgufTensor {
  std::string_view name;
  GgufTensorType type;
  std::vector<std::int64_t> dims;  // innermost first: {row length, row count, ...}
  std::int64_t value_count;
  std::span<const std::byte> data;

  std::int64_t row_length() const { return dims[0]; }
  std::int64_t row_count() const { return value_count / dims[0]; }
  std::int64_t row_bytes() const { return static_cast<std::int64_t>(data.size()) / row_count(); }
};

class GgufFile {
 public:
  // Maps `path` read-only. If it is a part of a split model, whichever ("-00002-of-00003.gguf"),
  // the others are opened from the same folder, and the result is the whole model: the first part's
  // metadata and the tensors of all parts. gguf_split.h says what must fit.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // Reads from `data`, which must outlive the result and be at least 8-byte aligned if tensor data
  // is to be used. A part of a split model stays a part.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> data);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  // Metadata. A getter answers nullopt when the key is absent or holds another kind of value; Has()
  // tells which. FindUint and FindInt accept every integer type whose value fits, FindFloat both
  // float types.
  bool Has(std::string_view key) const;
  std::optional<GgufValueType> FindType(std::string_view key) const;
  std::optional<std::uint64_t> FindUint(std::string_view key) const;
  std::optional<std::int64_t> FindInt(std::string_view key) const;
  std::optional<double> FindFloat(std::string_view key) const;
  std::optional<bool> FindBool(std::string_view key) const;
  std::optional<std::string_view> FindString(std::string_view key) const;
  // Arrays. The strings are views into the file: 16 bytes for each, no text is copied.
  std::optional<GgufValueType> FindArrayElementType(std::string_view key) const;
  std::optional<std::int64_t> FindArrayCount(std::string_view key) const;
  std::optional<std::vector<std::string_view>> FindStringArray(std::string_view key) const;
  // From any integer element type; nullopt also when a value does not fit.
  std::optional<std::vector<std::int32_t>> FindInt32Array(std::string_view key) const;
  std::optional<std::vector<float>> FindFloatArray(std::string_view key) const;
  // All keys, in file order.
  std::vector<std::string_view> Keys() const;

  // Tensors, in file order; Find answers nullptr for an unknown name.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;

  // Tells the kernel that `bytes`, part of data(), are not needed in memory now; reading them
  // brings them back. Does nothing after Parse.
  void DropFromMemory(std::span<const std::byte> bytes) const;

  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }
  std::span<const std::byte> data() const { return data_; }  // the whole file, or the first part
  const std::string& path() const { return path_; }          // empty after Parse
  // Of every part, in order: one for a model that is not split.
  std::vector<std::string> paths() const;
  std::int64_t byte_count() const;  // of all parts

  // FAILED_PRECONDITION if another file has taken the place of one that was opened, or one was
  // written to: what is read by path since then, or was read from the mapping, may not be of this
  // model. OK after Parse.
  absl::Status CheckUnchanged() const;
  // FAILED_PRECONDITION if a file that was opened was written to since, or could not be read:
  // data() is not what it was. Another file that has taken its place by name does not matter. OK
  // after Parse. Cheap.
  absl::Status CheckIntact() const;

 private:
  friend class GgufParser;
  friend class GgufJoiner;

  // One metadata value, still in the file's bytes.
  struct Value {
    std::string_view key;
    GgufValueType type;
    GgufValueType element_type;  // of an array; else the same as type
    std::int64_t count;          // elements of an array; else 1
    const std::byte* data;       // first element; for strings their length field
  };

  GgufFile() = default;
  // One file, whatever it is a part of.
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenOne(const std::string& path);
  const Value* FindValue(std::string_view key) const;
  // Null unless the key has a value of that type.
  const Value* FindOfType(std::string_view key, GgufValueType type) const;

  std::string path_;
  std::span<const std::byte> data_;
  bool mapped_ = false;
  std::unique_ptr<FileWatch> watch_;  // null after Parse
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<Value> values_;
  std::unordered_map<std::string_view, std::size_t> value_index_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
  std::vector<std::unique_ptr<GgufFile>> more_parts_;  // own the bytes of their tensors
};

}  // namespace cairn::compute
