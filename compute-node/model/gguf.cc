#include "compute-node/model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

struct TensorTypeInfo {
  GgufTensorType type;
  std::string_view name;
  GgufBlockLayout layout;
};

constexpr TensorTypeInfo kTensorTypes[] = {
    {GgufTensorType::kF32, "F32", {1, 4}},       {GgufTensorType::kF16, "F16", {1, 2}},
    {GgufTensorType::kQ4_0, "Q4_0", {32, 18}},   {GgufTensorType::kQ4_1, "Q4_1", {32, 20}},
    {GgufTensorType::kQ5_0, "Q5_0", {32, 22}},   {GgufTensorType::kQ5_1, "Q5_1", {32, 24}},
    {GgufTensorType::kQ8_0, "Q8_0", {32, 34}},   {GgufTensorType::kQ2_K, "Q2_K", {256, 84}},
    {GgufTensorType::kQ3_K, "Q3_K", {256, 110}}, {GgufTensorType::kQ4_K, "Q4_K", {256, 144}},
    {GgufTensorType::kQ5_K, "Q5_K", {256, 176}}, {GgufTensorType::kQ6_K, "Q6_K", {256, 210}},
    {GgufTensorType::kI8, "I8", {1, 1}},         {GgufTensorType::kI16, "I16", {1, 2}},
    {GgufTensorType::kI32, "I32", {1, 4}},       {GgufTensorType::kI64, "I64", {1, 8}},
    {GgufTensorType::kF64, "F64", {1, 8}},       {GgufTensorType::kBF16, "BF16", {1, 2}},
};

const TensorTypeInfo* FindTensorType(GgufTensorType type) {
  const auto* found =
      std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                   [type](const TensorTypeInfo& info) { return info.type == type; });
  return found == std::end(kTensorTypes) ? nullptr : found;
}

// Bytes of one value; 0 for strings and arrays, whose values differ in size, and for numbers that
// are no type.
std::uint64_t FixedValueBytes(std::uint32_t type) {
  constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

constexpr auto kValueTypeCount = static_cast<std::uint32_t>(GgufValueType::kFloat64) + 1;

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

std::string_view LoadString(const std::byte* data) {
  const auto length = Load<std::uint64_t>(data);
  return {reinterpret_cast<const char*>(data + sizeof(length)), length};
}

// An integer of any width, as 128 bits would hold it: magnitude and sign kept apart.
struct AnyInteger {
  bool negative;
  std::uint64_t bits;  // two's complement when negative
};

std::optional<AnyInteger> LoadInteger(GgufValueType type, const std::byte* data) {
  const auto from_signed = [](std::int64_t value) {
    return AnyInteger{value < 0, static_cast<std::uint64_t>(value)};
  };
  switch (type) {
    case GgufValueType::kUint8:
      return AnyInteger{false, Load<std::uint8_t>(data)};
    case GgufValueType::kInt8:
      return from_signed(Load<std::int8_t>(data));
    case GgufValueType::kUint16:
      return AnyInteger{false, Load<std::uint16_t>(data)};
    case GgufValueType::kInt16:
      return from_signed(Load<std::int16_t>(data));
    case GgufValueType::kUint32:
      return AnyInteger{false, Load<std::uint32_t>(data)};
    case GgufValueType::kInt32:
      return from_signed(Load<std::int32_t>(data));
    case GgufValueType::kUint64:
      return AnyInteger{false, Load<std::uint64_t>(data)};
    case GgufValueType::kInt64:
      return from_signed(Load<std::int64_t>(data));
    default:
      return std::nullopt;
  }
}

// Keys and names are printed in errors; a hostile file must not put control characters on a
// terminal.
std::string Printable(std::string_view text) {
  constexpr std::size_t kShownBytesMax = 80;
  std::string shown;
  for (const char c : text.substr(0, kShownBytesMax)) {
    shown += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > kShownBytesMax ? shown + "..." : shown;
}

}  // namespace

std::string_view GgufValueTypeName(GgufValueType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  const auto number = static_cast<std::uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

std::string_view GgufTensorTypeName(GgufTensorType type) {
  const TensorTypeInfo* info = FindTensorType(type);
  return info == nullptr ? "unknown" : info->name;
}

GgufBlockLayout GgufTensorLayout(GgufTensorType type) {
  const TensorTypeInfo* info = FindTensorType(type);
  CAIRN_CHECK(info != nullptr);
  return info->layout;
}

// Walks the bytes once, front to back. `position_` never passes `data_.size()`.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> data, GgufFile& file) : data_(data), file_(file) {}

  absl::Status Parse() {
    std::uint64_t tensor_count = 0;
    std::uint64_t key_count = 0;
    CAIRN_RETURN_IF_ERROR(ParseHeader(tensor_count, key_count));
    file_.values_.reserve(key_count);
    for (std::uint64_t i = 0; i < key_count; ++i) {
      CAIRN_RETURN_IF_ERROR(ParseValue(i));
    }
    CAIRN_RETURN_IF_ERROR(ReadAlignment());
    file_.tensors_.reserve(tensor_count);
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
      CAIRN_RETURN_IF_ERROR(ParseTensorInfo(i));
    }
    return PlaceTensors();
  }

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
    value = Load<T>(here());
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status TakeString(std::string_view& text, std::uint64_t bytes_max, std::string_view what) {
    std::uint64_t length = 0;
    CAIRN_RETURN_IF_ERROR(Take(length, what));
    if (length > bytes_max) {
      return InvalidArgument("read {} at byte {}: length {} is over the limit {}", what, position_,
                             length, bytes_max);
    }
    if (length > remaining()) {
      return InvalidArgument(
          "read {} at byte {}: length {} but only {} bytes are left; the file is truncated", what,
          position_, length, remaining());
    }
    text = {reinterpret_cast<const char*>(here()), length};
    position_ += length;
    return absl::OkStatus();
  }

  absl::Status ParseHeader(std::uint64_t& tensor_count, std::uint64_t& key_count) {
    constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
    std::uint32_t magic = 0;
    CAIRN_RETURN_IF_ERROR(Take(magic, "magic"));
    if (magic != kMagic) {
      return InvalidArgument("not a GGUF file: it begins with {:#010x}, GGUF files with {:#010x}",
                             magic, kMagic);
    }
    CAIRN_RETURN_IF_ERROR(Take(file_.version_, "version"));
    if (file_.version_ != 2 && file_.version_ != 3) {
      return InvalidArgument(
          "GGUF version {} is not supported; versions 2 and 3 (little-endian) are", file_.version_);
    }
    CAIRN_RETURN_IF_ERROR(Take(tensor_count, "tensor count"));
    CAIRN_RETURN_IF_ERROR(Take(key_count, "key count"));
    if (tensor_count > kGgufTensorCountMax) {
      return InvalidArgument("tensor count {} is over the limit {}", tensor_count,
                             kGgufTensorCountMax);
    }
    if (key_count > kGgufKeyCountMax) {
      return InvalidArgument("key count {} is over the limit {}", key_count, kGgufKeyCountMax);
    }
    return absl::OkStatus();
  }

  absl::Status ParseValue(std::uint64_t index) {
    std::string_view key;
    CAIRN_RETURN_IF_ERROR(TakeString(key, kGgufKeyBytesMax, fmt::format("key {}", index)));
    const std::string what = fmt::format("value of key '{}'", Printable(key));
    if (key.empty()) {
      return InvalidArgument("key {} is empty", index);
    }
    std::uint32_t type = 0;
    CAIRN_RETURN_IF_ERROR(Take(type, what));
    std::uint32_t element_type = type;
    std::uint64_t count = 1;
    if (type == static_cast<std::uint32_t>(GgufValueType::kArray)) {
      CAIRN_RETURN_IF_ERROR(Take(element_type, what));
      CAIRN_RETURN_IF_ERROR(Take(count, what));
      if (element_type == static_cast<std::uint32_t>(GgufValueType::kArray)) {
        return InvalidArgument("{}: arrays of arrays are not supported", what);
      }
    }
    if (element_type >= kValueTypeCount) {
      return InvalidArgument("{}: type {} is unknown", what, element_type);
    }
    const GgufFile::Value value{key, static_cast<GgufValueType>(type),
                                static_cast<GgufValueType>(element_type),
                                static_cast<std::int64_t>(count), here()};
    CAIRN_RETURN_IF_ERROR(SkipElements(value.element_type, count, what));
    if (!file_.value_index_.emplace(key, file_.values_.size()).second) {
      return InvalidArgument("key '{}' is there twice", Printable(key));
    }
    file_.values_.push_back(value);
    return absl::OkStatus();
  }

  absl::Status SkipElements(GgufValueType type, std::uint64_t count, const std::string& what) {
    const bool is_string = type == GgufValueType::kString;
    // A string takes at least its length field, which bounds the loop below by the file's size.
    const std::uint64_t bytes_min =
        is_string ? sizeof(std::uint64_t) : FixedValueBytes(static_cast<std::uint32_t>(type));
    if (count > remaining() / bytes_min) {
      return InvalidArgument(
          "{}: {} elements of type {} at byte {}, but only {} bytes are left; truncated?", what,
          count, GgufValueTypeName(type), position_, remaining());
    }
    if (!is_string) {
      position_ += count * bytes_min;
      return absl::OkStatus();
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      CAIRN_RETURN_IF_ERROR(TakeString(text, std::numeric_limits<std::uint64_t>::max(), what));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    if (!file_.Has("general.alignment")) {
      return absl::OkStatus();
    }
    const std::optional<std::uint64_t> alignment = file_.FindUint("general.alignment");
    if (!alignment || !std::has_single_bit(*alignment) || *alignment > kGgufAlignmentMax) {
      return InvalidArgument("general.alignment must be a power of two of at most {}, but is {}",
                             kGgufAlignmentMax,
                             alignment ? std::to_string(*alignment) : "no integer");
    }
    file_.alignment_ = *alignment;
    return absl::OkStatus();
  }

  absl::Status ParseTensorInfo(std::uint64_t index) {
    std::string_view name;
    CAIRN_RETURN_IF_ERROR(
        TakeString(name, kGgufTensorNameBytesMax, fmt::format("name of tensor {}", index)));
    const std::string what = fmt::format("tensor '{}'", Printable(name));
    std::uint32_t dim_count = 0;
    CAIRN_RETURN_IF_ERROR(Take(dim_count, what));
    if (dim_count == 0 || dim_count > kGgufDimCountMax) {
      return InvalidArgument("{}: {} dimensions, there must be 1 to {}", what, dim_count,
                             kGgufDimCountMax);
    }
    GgufTensor tensor{name, GgufTensorType::kF32, {}, 1, {}};
    for (std::uint32_t i = 0; i < dim_count; ++i) {
      std::uint64_t dim = 0;
      CAIRN_RETURN_IF_ERROR(Take(dim, what));
      // A quarter of the 64-bit range leaves room for the product with the bytes of a value.
      constexpr std::uint64_t kValueCountMax = std::numeric_limits<std::int64_t>::max() / 16;
      if (dim == 0 || dim > kValueCountMax / static_cast<std::uint64_t>(tensor.value_count)) {
        return InvalidArgument(
            "{}: dimension {} is {}, which is zero or overflows the tensor's size", what, i, dim);
      }
      tensor.dims.push_back(static_cast<std::int64_t>(dim));
      tensor.value_count *= static_cast<std::int64_t>(dim);
    }
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
    CAIRN_RETURN_IF_ERROR(Take(type, what));
    CAIRN_RETURN_IF_ERROR(Take(offset, what));
    const TensorTypeInfo* info = FindTensorType(static_cast<GgufTensorType>(type));
    if (info == nullptr) {
      return Unimplemented("{}: tensor type {} is unknown; convert the model to F16 or Q8_0", what,
                           type);
    }
    if (tensor.row_length() % info->layout.block_values != 0) {
      return InvalidArgument("{}: row length {} is not a multiple of the {} values of a {} block",
                             what, tensor.row_length(), info->layout.block_values, info->name);
    }
    tensor.type = info->type;
    if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second) {
      return InvalidArgument("{} is there twice", what);
    }
    file_.tensors_.push_back(std::move(tensor));
    offsets_.push_back(offset);
    return absl::OkStatus();
  }

  absl::Status PlaceTensors() {
    const std::uint64_t mask = file_.alignment_ - 1;
    std::uint64_t base = (position_ + mask) & ~mask;
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const GgufBlockLayout layout = GgufTensorLayout(tensor.type);
      const auto bytes =
          static_cast<std::uint64_t>(tensor.value_count / layout.block_values * layout.block_bytes);
      if (offsets_[i] != expected) {
        return InvalidArgument("tensor '{}': offset {} but the tensors before it end at {}",
                               Printable(tensor.name), offsets_[i], expected);
      }
      if (base > data_.size() || expected > data_.size() - base ||
          bytes > data_.size() - base - expected) {
        return InvalidArgument(
            "tensor '{}': {} bytes at offset {} of the data section, which begins at byte {}, but "
            "the file has {} "
            "bytes; it is truncated: copy or download it again",
            Printable(tensor.name), bytes, expected, base, data_.size());
      }
      tensor.data = data_.subspan(base + expected, bytes);
      expected += (bytes + mask) & ~mask;
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> data_;
  std::uint64_t position_ = 0;
  GgufFile& file_;
  std::vector<std::uint64_t> offsets_;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoStatus(errno, fmt::format("open model file '{}'", path));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, fmt::format("stat model file '{}'", path));
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    return InvalidArgument("model file '{}' is {}", path,
                           S_ISREG(info.st_mode) ? "empty" : "not a regular file");
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (mapping == MAP_FAILED) {
    return ErrnoStatus(error, fmt::format("map {} bytes of model file '{}'", size, path));
  }
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = path;
  file->data_ = {static_cast<const std::byte*>(mapping), size};
  file->mapped_ = true;
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
  if (mapped_) {
    // Unmapping as const is not offered by the interface; the mapping was made by Open and is ours.
    munmap(const_cast<std::byte*>(data_.data()), data_.size());
  }
}

const GgufFile::Value* GgufFile::FindValue(std::string_view key) const {
  const auto found = value_index_.find(key);
  return found == value_index_.end() ? nullptr : &values_[found->second];
}

bool GgufFile::Has(std::string_view key) const { return FindValue(key) != nullptr; }

std::optional<GgufValueType> GgufFile::FindType(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr ? std::nullopt : std::optional(value->type);
}

std::optional<std::uint64_t> GgufFile::FindUint(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<AnyInteger> integer = LoadInteger(value->type, value->data);
  return integer && !integer->negative ? std::optional(integer->bits) : std::nullopt;
}

std::optional<std::int64_t> GgufFile::FindInt(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<AnyInteger> integer = LoadInteger(value->type, value->data);
  if (!integer ||
      (!integer->negative && integer->bits > std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(integer->bits);
}

std::optional<double> GgufFile::FindFloat(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value != nullptr && value->type == GgufValueType::kFloat32) {
    return Load<float>(value->data);
  }
  if (value != nullptr && value->type == GgufValueType::kFloat64) {
    return Load<double>(value->data);
  }
  return std::nullopt;
}

std::optional<bool> GgufFile::FindBool(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr || value->type != GgufValueType::kBool) {
    return std::nullopt;
  }
  return Load<std::uint8_t>(value->data) != 0;
}

std::optional<std::string_view> GgufFile::FindString(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr || value->type != GgufValueType::kString) {
    return std::nullopt;
  }
  return LoadString(value->data);
}

std::optional<GgufValueType> GgufFile::FindArrayElementType(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr || value->type != GgufValueType::kArray
             ? std::nullopt
             : std::optional(value->element_type);
}

std::optional<std::int64_t> GgufFile::FindArrayCount(std::string_view key) const {
  const Value* value = FindValue(key);
  return value == nullptr || value->type != GgufValueType::kArray ? std::nullopt
                                                                  : std::optional(value->count);
}

std::optional<std::vector<std::string_view>> GgufFile::FindStringArray(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr || value->type != GgufValueType::kArray ||
      value->element_type != GgufValueType::kString) {
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
  const Value* value = FindValue(key);
  if (value == nullptr || value->type != GgufValueType::kArray) {
    return std::nullopt;
  }
  std::vector<std::int32_t> numbers;
  numbers.reserve(static_cast<std::size_t>(value->count));
  const std::uint64_t bytes = FixedValueBytes(static_cast<std::uint32_t>(value->element_type));
  for (std::int64_t i = 0; i < value->count; ++i) {
    const std::optional<AnyInteger> integer =
        LoadInteger(value->element_type, value->data + static_cast<std::uint64_t>(i) * bytes);
    if (!integer) {
      return std::nullopt;
    }
    const auto number = static_cast<std::int64_t>(integer->bits);
    if ((!integer->negative && integer->bits > std::numeric_limits<std::int32_t>::max()) ||
        (integer->negative && number < std::numeric_limits<std::int32_t>::min())) {
      return std::nullopt;
    }
    numbers.push_back(static_cast<std::int32_t>(number));
  }
  return numbers;
}

std::optional<std::vector<float>> GgufFile::FindFloatArray(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr || value->type != GgufValueType::kArray) {
    return std::nullopt;
  }
  const auto count = static_cast<std::size_t>(value->count);
  std::vector<float> numbers(count);
  if (value->element_type == GgufValueType::kFloat32) {
    if (count > 0) {
      std::memcpy(numbers.data(), value->data, count * sizeof(float));
    }
    return numbers;
  }
  if (value->element_type == GgufValueType::kFloat64) {
    for (std::size_t i = 0; i < count; ++i) {
      numbers[i] = static_cast<float>(Load<double>(value->data + i * sizeof(double)));
    }
    return numbers;
  }
  return std::nullopt;
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
