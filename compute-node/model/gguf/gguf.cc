#include "compute-node/model/gguf/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include <absl/numeric/int128.h>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "compute-node/model/gguf/gguf_parser.h"
#include "compute-node/model/gguf/gguf_split.h"

namespace cairn::compute {
namespace {

struct TensorTypeInfo {
  GgufTensorType type;
  std::string_view name;
  GgufBlockLayout layout;
};

// Also those that Cairn does not compute with, so that their files can be inspected.
constexpr TensorTypeInfo kTensorTypes[] = {
    {GgufTensorType::kF32, "F32", {1, 4}},
    {GgufTensorType::kF16, "F16", {1, 2}},
    {GgufTensorType::kQ40, "Q4_0", {32, 18}},
    {GgufTensorType::kQ41, "Q4_1", {32, 20}},
    {GgufTensorType::kQ50, "Q5_0", {32, 22}},
    {GgufTensorType::kQ51, "Q5_1", {32, 24}},
    {GgufTensorType::kQ80, "Q8_0", {32, 34}},
    {GgufTensorType::kQ81, "Q8_1", {32, 36}},
    {GgufTensorType::kQ2K, "Q2_K", {256, 84}},
    {GgufTensorType::kQ3K, "Q3_K", {256, 110}},
    {GgufTensorType::kQ4K, "Q4_K", {256, 144}},
    {GgufTensorType::kQ5K, "Q5_K", {256, 176}},
    {GgufTensorType::kQ6K, "Q6_K", {256, 210}},
    {GgufTensorType::kQ8K, "Q8_K", {256, 292}},
    {GgufTensorType::kIq2Xxs, "IQ2_XXS", {256, 66}},
    {GgufTensorType::kIq2Xs, "IQ2_XS", {256, 74}},
    {GgufTensorType::kIq3Xxs, "IQ3_XXS", {256, 98}},
    {GgufTensorType::kIq1S, "IQ1_S", {256, 50}},
    {GgufTensorType::kIq4Nl, "IQ4_NL", {32, 18}},
    {GgufTensorType::kIq3S, "IQ3_S", {256, 110}},
    {GgufTensorType::kIq2S, "IQ2_S", {256, 82}},
    {GgufTensorType::kIq4Xs, "IQ4_XS", {256, 136}},
    {GgufTensorType::kI8, "I8", {1, 1}},
    {GgufTensorType::kI16, "I16", {1, 2}},
    {GgufTensorType::kI32, "I32", {1, 4}},
    {GgufTensorType::kI64, "I64", {1, 8}},
    {GgufTensorType::kF64, "F64", {1, 8}},
    {GgufTensorType::kIq1M, "IQ1_M", {256, 56}},
    {GgufTensorType::kBF16, "BF16", {1, 2}},
    {GgufTensorType::kTq10, "TQ1_0", {256, 54}},
    {GgufTensorType::kTq20, "TQ2_0", {256, 66}},
    {GgufTensorType::kMxfp4, "MXFP4", {32, 17}},
};

const TensorTypeInfo* FindTensorType(GgufTensorType type) {
  const auto* found =
      std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                   [type](const TensorTypeInfo& info) { return info.type == type; });
  return found == std::end(kTensorTypes) ? nullptr : found;
}

std::string_view LoadString(const std::byte* data) {
  const auto length = LoadGgufNumber<std::uint64_t>(data);
  return {reinterpret_cast<const char*>(data + sizeof(length)), length};
}

// From an integer of any width.
std::optional<absl::int128> LoadInteger(GgufValueType type, const std::byte* data) {
  switch (type) {
    case GgufValueType::kUint8:
      return LoadGgufNumber<std::uint8_t>(data);
    case GgufValueType::kInt8:
      return LoadGgufNumber<std::int8_t>(data);
    case GgufValueType::kUint16:
      return LoadGgufNumber<std::uint16_t>(data);
    case GgufValueType::kInt16:
      return LoadGgufNumber<std::int16_t>(data);
    case GgufValueType::kUint32:
      return LoadGgufNumber<std::uint32_t>(data);
    case GgufValueType::kInt32:
      return LoadGgufNumber<std::int32_t>(data);
    case GgufValueType::kUint64:
      return LoadGgufNumber<std::uint64_t>(data);
    case GgufValueType::kInt64:
      return LoadGgufNumber<std::int64_t>(data);
    default:
      return std::nullopt;
  }
}

// The same where it fits.
template <typename Number>
std::optional<Number> LoadFitting(GgufValueType type, const std::byte* data) {
  const std::optional<absl::int128> integer = LoadInteger(type, data);
  const bool fits = integer && *integer >= std::numeric_limits<Number>::min() &&
                    *integer <= std::numeric_limits<Number>::max();
  return fits ? std::optional(static_cast<Number>(*integer)) : std::nullopt;
}

// Whether it is the same file, and was not written to between.
bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

std::string PrintableText(std::string_view text) {
  constexpr std::size_t kShownBytesMax = 200;
  std::string shown;
  for (const char c : text.substr(0, kShownBytesMax)) {
    shown += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > kShownBytesMax ? shown + "..." : shown;
}

std::string_view GgufValueTypeName(GgufValueType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  const auto number = static_cast<std::uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

bool IsKnownGgufTensorType(GgufTensorType type) { return FindTensorType(type) != nullptr; }

std::string_view GgufTensorTypeName(GgufTensorType type) {
  const TensorTypeInfo* info = FindTensorType(type);
  return info == nullptr ? "unknown" : info->name;
}

GgufBlockLayout GgufTensorLayout(GgufTensorType type) {
  const TensorTypeInfo* info = FindTensorType(type);
  CAIRN_CHECK(info != nullptr);
  return info->layout;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file;
  CAIRN_ASSIGN_OR_RETURN(file, OpenOne(path));
  return GgufJoiner::Join(std::move(file));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::OpenOne(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of waited for.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(errno, fmt::format("open model file '{}'", path));
  }
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("stat model file '{}'", path));
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    return InvalidArgument("model file '{}' is {}", path,
                           S_ISREG(info.st_mode) ? "empty" : "not a regular file");
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("map {} bytes of model file '{}'", size, path));
  }
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = path;
  file->data_ = {static_cast<const std::byte*>(mapping), size};
  file->mapped_ = true;
  CAIRN_ASSIGN_OR_RETURN(file->watch_, FileWatch::Start(std::move(fd), info, file->data_,
                                                        fmt::format("model file '{}'", path)));
  const absl::Status status = GgufParser(file->data_, *file).Parse();
  if (!status.ok()) {
    return Annotate(status, fmt::format("model file '{}'", path));
  }
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> data) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->data_ = data;
  CAIRN_RETURN_IF_ERROR(GgufParser(data, *file).Parse());
  return file;
}

GgufFile::~GgufFile() {
  watch_.reset();
  if (mapped_) {
    // Unmapping as const is not offered by the interface; the mapping was made by Open and is ours.
    munmap(const_cast<std::byte*>(data_.data()), data_.size());
  }
}

void GgufFile::DropFromMemory(std::span<const std::byte> bytes) const {
  if (!mapped_) {
    return;
  }
  // Whole pages only: the first and last may hold other tensors.
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(bytes.data()) + page_bytes - 1) / page_bytes * page_bytes;
  const auto end =
      reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page_bytes * page_bytes;
  if (begin < end) {
    // The mapping is ours, whichever part's it is.
    static_cast<void>(madvise(const_cast<std::byte*>(bytes.data()) +
                                  (begin - reinterpret_cast<std::uintptr_t>(bytes.data())),
                              end - begin, MADV_DONTNEED));
  }
}

absl::Status GgufFile::CheckUnchanged() const {
  struct stat now = {};
  if (mapped_ && (stat(path_.c_str(), &now) != 0 || !IsSameFile(now, watch_->opened()))) {
    return FailedPrecondition(
        "model file '{}' was removed, replaced or written to while it was read; start again when "
        "it is complete",
        path_);
  }
  for (const auto& part : more_parts_) {
    CAIRN_RETURN_IF_ERROR(part->CheckUnchanged());
  }
  return absl::OkStatus();
}

absl::Status GgufFile::CheckIntact() const {
  if (watch_ != nullptr) CAIRN_RETURN_IF_ERROR(watch_->Check());
  for (const auto& part : more_parts_) CAIRN_RETURN_IF_ERROR(part->CheckIntact());
  return absl::OkStatus();
}

std::vector<std::string> GgufFile::paths() const {
  std::vector<std::string> paths = {path_};
  for (const auto& part : more_parts_) {
    paths.push_back(part->path_);
  }
  return paths;
}

std::int64_t GgufFile::byte_count() const {
  auto count = static_cast<std::int64_t>(data_.size());
  for (const auto& part : more_parts_) {
    count += static_cast<std::int64_t>(part->data_.size());
  }
  return count;
}

const GgufFile::Value* GgufFile::FindValue(std::string_view key) const {
  const auto found = value_index_.find(key);
  return found == value_index_.end() ? nullptr : &values_[found->second];
}

const GgufFile::Value* GgufFile::FindOfType(std::string_view key, GgufValueType type) const {
  const Value* value = FindValue(key);
  return value != nullptr && value->type == type ? value : nullptr;
}

bool GgufFile::Has(std::string_view key) const { return FindValue(key) != nullptr; }

std::optional<GgufValueType> GgufFile::FindType(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr ? std::nullopt : std::optional(value->type);
}

std::optional<std::uint64_t> GgufFile::FindUint(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr ? std::nullopt : LoadFitting<std::uint64_t>(value->type, value->data);
}

std::optional<std::int64_t> GgufFile::FindInt(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr ? std::nullopt : LoadFitting<std::int64_t>(value->type, value->data);
}

std::optional<double> GgufFile::FindFloat(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value != nullptr && value->type == GgufValueType::kFloat32) {
    return LoadGgufNumber<float>(value->data);
  }
  if (value != nullptr && value->type == GgufValueType::kFloat64) {
    return LoadGgufNumber<double>(value->data);
  }
  return std::nullopt;
}

std::optional<bool> GgufFile::FindBool(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kBool);
  return value == nullptr ? std::nullopt
                          : std::optional(LoadGgufNumber<std::uint8_t>(value->data) != 0);
}

std::optional<std::string_view> GgufFile::FindString(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kString);
  return value == nullptr ? std::nullopt : std::optional(LoadString(value->data));
}

std::optional<GgufValueType> GgufFile::FindArrayElementType(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kArray);
  return value == nullptr ? std::nullopt : std::optional(value->element_type);
}

std::optional<std::int64_t> GgufFile::FindArrayCount(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kArray);
  return value == nullptr ? std::nullopt : std::optional(value->count);
}

std::optional<std::vector<std::string_view>> GgufFile::FindStringArray(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kArray);
  if (value == nullptr || value->element_type != GgufValueType::kString) {
    return std::nullopt;
  }
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<std::size_t>(value->count));
  const std::byte* next = value->data;
  for (std::int64_t i = 0; i < value->count; ++i) {
    strings.push_back(LoadString(next));
    next += sizeof(std::uint64_t) + strings.back().size();
  }
  return strings;
}

std::optional<std::vector<std::int32_t>> GgufFile::FindInt32Array(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kArray);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::vector<std::int32_t> numbers;
  numbers.reserve(static_cast<std::size_t>(value->count));
  const std::uint64_t bytes = GgufFixedValueBytes(static_cast<std::uint32_t>(value->element_type));
  for (std::int64_t i = 0; i < value->count; ++i) {
    const std::optional<std::int32_t> number = LoadFitting<std::int32_t>(
        value->element_type, value->data + static_cast<std::uint64_t>(i) * bytes);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<float>> GgufFile::FindFloatArray(std::string_view key) const {
  const Value* value = FindOfType(key, GgufValueType::kArray);
  const bool is_double = value != nullptr && value->element_type == GgufValueType::kFloat64;
  if (value == nullptr || (!is_double && value->element_type != GgufValueType::kFloat32)) {
    return std::nullopt;
  }
  std::vector<float> numbers(static_cast<std::size_t>(value->count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = is_double
                     ? static_cast<float>(LoadGgufNumber<double>(value->data + i * sizeof(double)))
                     : LoadGgufNumber<float>(value->data + i * sizeof(float));
  }
  return numbers;
}

std::vector<std::string_view> GgufFile::Keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const Value& value : values_) {
    keys.push_back(value.key);
  }
  return keys;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace cairn::compute
