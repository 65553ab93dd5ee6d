#include "compute-node/model/gguf/gguf_parser.h"

#include <bit>
#include <utility>

#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr auto kValueTypeCount = static_cast<std::uint32_t>(GgufValueType::kFloat64) + 1;

}  // namespace

std::uint64_t GgufFixedValueBytes(std::uint32_t type) {
  constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

std::uint64_t GgufElementsBytes(GgufValueType type, std::int64_t count, const std::byte* data) {
  if (type != GgufValueType::kString) {
    return static_cast<std::uint64_t>(count) *
           GgufFixedValueBytes(static_cast<std::uint32_t>(type));
  }
  std::uint64_t bytes = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bytes += sizeof(std::uint64_t) + LoadGgufNumber<std::uint64_t>(data + bytes);
  }
  return bytes;
}

absl::Status GgufParser::Parse() {
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

absl::Status GgufParser::TakeString(std::string_view& text, std::uint64_t bytes_max,
                                    std::string_view what) {
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

absl::Status GgufParser::ParseHeader(std::uint64_t& tensor_count, std::uint64_t& key_count) {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  std::uint32_t magic = 0;
  CAIRN_RETURN_IF_ERROR(Take(magic, "magic"));
  if (magic != kMagic) {
    return InvalidArgument("not a GGUF file: it begins with {:#010x}, GGUF files with {:#010x}",
                           magic, kMagic);
  }
  CAIRN_RETURN_IF_ERROR(Take(file_.version_, "version"));
  if (file_.version_ != 2 && file_.version_ != 3) {
    return InvalidArgument("GGUF version {} is not supported; versions 2 and 3 (little-endian) are",
                           file_.version_);
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

absl::Status GgufParser::ParseValue(std::uint64_t index) {
  std::string_view key;
  CAIRN_RETURN_IF_ERROR(TakeString(key, kGgufKeyBytesMax, fmt::format("key {}", index)));
  const std::string what = fmt::format("value of key '{}'", PrintableText(key));
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
    return InvalidArgument("key '{}' is there twice", PrintableText(key));
  }
  file_.values_.push_back(value);
  return absl::OkStatus();
}

absl::Status GgufParser::SkipElements(GgufValueType type, std::uint64_t count,
                                      const std::string& what) {
  const bool is_string = type == GgufValueType::kString;
  // A string takes at least its length field, which bounds the loop below by the file's size.
  const std::uint64_t bytes_min =
      is_string ? sizeof(std::uint64_t) : GgufFixedValueBytes(static_cast<std::uint32_t>(type));
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

absl::Status GgufParser::ReadAlignment() {
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

absl::Status GgufParser::TakeDims(GgufTensor& tensor, const std::string& what) {
  std::uint32_t dim_count = 0;
  CAIRN_RETURN_IF_ERROR(Take(dim_count, what));
  if (dim_count == 0 || dim_count > kGgufDimCountMax) {
    return InvalidArgument("{}: {} dimensions, there must be 1 to {}", what, dim_count,
                           kGgufDimCountMax);
  }
  for (std::uint32_t i = 0; i < dim_count; ++i) {
    std::uint64_t dim = 0;
    CAIRN_RETURN_IF_ERROR(Take(dim, what));
    // A quarter of the 64-bit range leaves room for the product with the bytes of a value.
    constexpr std::uint64_t kValueCountMax = std::numeric_limits<std::int64_t>::max() / 16;
    if (dim == 0 || dim > kValueCountMax / static_cast<std::uint64_t>(tensor.value_count)) {
      return InvalidArgument("{}: dimension {} is {}, which is zero or overflows the tensor's size",
                             what, i, dim);
    }
    tensor.dims.push_back(static_cast<std::int64_t>(dim));
    tensor.value_count *= static_cast<std::int64_t>(dim);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensorInfo(std::uint64_t index) {
  std::string_view name;
  CAIRN_RETURN_IF_ERROR(
      TakeString(name, kGgufTensorNameBytesMax, fmt::format("name of tensor {}", index)));
  const std::string what = fmt::format("tensor '{}'", PrintableText(name));
  GgufTensor tensor{name, GgufTensorType::kF32, {}, 1, {}};
  CAIRN_RETURN_IF_ERROR(TakeDims(tensor, what));
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  CAIRN_RETURN_IF_ERROR(Take(type, what));
  CAIRN_RETURN_IF_ERROR(Take(offset, what));
  tensor.type = static_cast<GgufTensorType>(type);
  if (!IsKnownGgufTensorType(tensor.type)) {
    return Unimplemented(
        "{}: tensor type {} is unknown; Cairn computes with {}: convert the model to one of them",
        what, type, kWeightTypeNames);
  }
  const std::int64_t block_values = GgufTensorLayout(tensor.type).block_values;
  if (tensor.row_length() % block_values != 0) {
    return InvalidArgument("{}: row length {} is not a multiple of the {} values of a {} block",
                           what, tensor.row_length(), block_values,
                           GgufTensorTypeName(tensor.type));
  }
  if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second) {
    return InvalidArgument("{} is there twice", what);
  }
  file_.tensors_.push_back(std::move(tensor));
  offsets_.push_back(offset);
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
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
                             PrintableText(tensor.name), offsets_[i], expected);
    }
    if (base > data_.size() || expected > data_.size() - base ||
        bytes > data_.size() - base - expected) {
      return InvalidArgument(
          "tensor '{}': {} bytes at offset {} of the data section, which begins at byte {}, but "
          "the file has {} "
          "bytes; it is truncated: copy or download it again",
          PrintableText(tensor.name), bytes, expected, base, data_.size());
    }
    tensor.data = data_.subspan(base + expected, bytes);
    expected += (bytes + mask) & ~mask;
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
