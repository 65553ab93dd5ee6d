#include "tests/tools/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace cairn::test {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kAlignBytes = 32;
// Rows are encoded in batches of about this many values, so that memory stays small whatever the
// tensor's size.
constexpr int64_t kBatchValues = 1 << 20;

enum ValueType : uint32_t { kI32 = 5, kU32 = 4, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <typename T>
void Put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void PutString(std::string& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out.append(text);
}

int64_t PaddingAt(int64_t position) { return (kAlignBytes - position % kAlignBytes) % kAlignBytes; }

}  // namespace

void GgufWriter::AddKey(std::string_view key, uint32_t type) {
  ++metadata_count_;
  PutString(metadata_, key);
  Put(metadata_, type);
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddKey(key, kString);
  PutString(metadata_, value);
}

void GgufWriter::AddU32(std::string_view key, uint32_t value) {
  AddKey(key, kU32);
  Put(metadata_, value);
}

void GgufWriter::AddF32(std::string_view key, float value) {
  AddKey(key, kFloat32);
  Put(metadata_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  AddKey(key, kBool);
  Put<uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::AddStringArray(std::string_view key, std::span<const std::string> values) {
  AddKey(key, kArray);
  Put<uint32_t>(metadata_, kString);
  Put<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) {
    PutString(metadata_, value);
  }
}

void GgufWriter::AddF32Array(std::string_view key, std::span<const float> values) {
  AddKey(key, kArray);
  Put<uint32_t>(metadata_, kFloat32);
  Put<uint64_t>(metadata_, values.size());
  for (const float value : values) {
    Put(metadata_, value);
  }
}

void GgufWriter::AddI32Array(std::string_view key, std::span<const int32_t> values) {
  AddKey(key, kArray);
  Put<uint32_t>(metadata_, kI32);
  Put<uint64_t>(metadata_, values.size());
  for (const int32_t value : values) {
    Put(metadata_, value);
  }
}

void GgufWriter::AddRaw(std::string_view key, uint32_t type, std::string_view value) {
  AddKey(key, type);
  metadata_.append(value);
}

void GgufWriter::AddTensor(std::string_view name, std::vector<int64_t> shape, TensorType type,
                           RowSource source) {
  CAIRN_CHECK(!shape.empty());
  const TensorTypeInfo info = InfoOf(type);
  CAIRN_CHECK_EQ(shape[0] % info.block_values, 0);
  Tensor tensor{std::string(name), std::move(shape), type, std::move(source)};
  for (size_t i = 1; i < tensor.shape.size(); ++i) {
    tensor.row_count *= tensor.shape[i];
  }
  tensor.size_bytes = tensor.row_count * (tensor.shape[0] / info.block_values) * info.block_bytes;
  tensors_.push_back(std::move(tensor));
}

std::string GgufWriter::Header() const {
  std::string out = "GGUF";
  Put<uint32_t>(out, 3);
  Put<uint64_t>(out, tensors_.size());
  Put<int64_t>(out, metadata_count_);
  out += metadata_;
  int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutString(out, tensor.name);
    Put(out, static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t dimension : tensor.shape) {
      Put(out, dimension);
    }
    Put(out, static_cast<uint32_t>(tensor.type));
    Put(out, offset);
    offset += tensor.size_bytes;
    offset += PaddingAt(offset);
  }
  out.append(static_cast<size_t>(PaddingAt(static_cast<int64_t>(out.size()))), '\0');
  return out;
}

absl::Status GgufWriter::WriteTensor(const Tensor& tensor, const Sink& sink) {
  const int64_t row_values = tensor.shape[0];
  const int64_t batch_rows = std::max<int64_t>(1, kBatchValues / row_values);
  std::vector<float> values;
  std::vector<uint8_t> encoded;
  for (int64_t first = 0; first < tensor.row_count; first += batch_rows) {
    const int64_t rows = std::min(batch_rows, tensor.row_count - first);
    values.resize(static_cast<size_t>(rows * row_values));
    for (int64_t row = 0; row < rows; ++row) {
      tensor.source(first + row, std::span(values).subspan(static_cast<size_t>(row * row_values),
                                                           static_cast<size_t>(row_values)));
    }
    encoded.clear();
    EncodeValues(values, tensor.type, encoded);
    CAIRN_RETURN_IF_ERROR(sink(encoded));
  }
  encoded.assign(static_cast<size_t>(PaddingAt(tensor.size_bytes)), 0);
  return sink(encoded);
}

absl::Status GgufWriter::WriteTo(const Sink& sink) const {
  const std::string header = Header();
  CAIRN_RETURN_IF_ERROR(sink(std::vector<uint8_t>(header.begin(), header.end())));
  for (const Tensor& tensor : tensors_) {
    CAIRN_RETURN_IF_ERROR(WriteTensor(tensor, sink));
  }
  return absl::OkStatus();
}

absl::Status GgufWriter::WriteFile(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return ErrnoStatus(errno, fmt::format("create {}", path));
  }
  absl::Status status = WriteTo([&](std::span<const uint8_t> bytes) -> absl::Status {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) {
      return ErrnoStatus(errno, fmt::format("write {} bytes to {}", bytes.size(), path));
    }
    return absl::OkStatus();
  });
  if (std::fclose(file) != 0 && status.ok()) {
    status = ErrnoStatus(errno, fmt::format("close {}", path));
  }
  return status;
}

std::string GgufWriter::ToString() const {
  std::string out;
  const absl::Status status = WriteTo([&](std::span<const uint8_t> bytes) {
    out.append(bytes.begin(), bytes.end());
    return absl::OkStatus();
  });
  CAIRN_CHECK(status.ok());
  return out;
}

GgufWriter GgufWriter::Part(int64_t index, int64_t part_count) const {
  constexpr uint32_t kU16 = 2;
  const auto u16 = [](int64_t value) {
    std::string bytes;
    Put(bytes, static_cast<uint16_t>(value));
    return bytes;
  };
  GgufWriter part;
  if (index == 0) {
    part.metadata_ = metadata_;
    part.metadata_count_ = metadata_count_;
  }
  part.AddRaw("split.no", kU16, u16(index));
  part.AddRaw("split.count", kU16, u16(part_count));
  std::string tensor_count;
  Put(tensor_count, static_cast<int32_t>(tensors_.size()));
  part.AddRaw("split.tensors.count", kI32, tensor_count);
  const auto bound = [&](int64_t of) {
    return tensors_.begin() + static_cast<int64_t>(tensors_.size()) * of / part_count;
  };
  part.tensors_.assign(bound(index), bound(index + 1));
  return part;
}

absl::Status GgufWriter::WriteParts(const std::string& prefix, int64_t part_count,
                                    std::vector<std::string>& paths) const {
  paths.clear();
  for (int64_t i = 0; i < part_count; ++i) {
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, part_count));
    CAIRN_RETURN_IF_ERROR(Part(i, part_count).WriteFile(paths.back()));
  }
  return absl::OkStatus();
}

}  // namespace cairn::test
