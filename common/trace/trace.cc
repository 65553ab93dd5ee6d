#include "common/trace/trace.h"

#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>

#include "common/base/check.h"
#include "common/io/checksum.h"
#include "common/kv/messages.h"

namespace cairn {
namespace {

// Numbers go between files and memory as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic("CAIRNTRC");
constexpr std::int64_t kHeaderBytes = 56;
constexpr std::int64_t kCrcBytes = 4;
// Query heads of one KV head.
constexpr std::int32_t kGroupSizeMax = kHeadCountMax;

// The header behind magic and version, in the order of the file.
struct Header {
  std::uint32_t layer_count = 0;
  std::uint32_t kv_head_count = 0;
  std::uint32_t group_size = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t recorded_layers = 0;
  std::uint32_t recorded_heads = 0;
  std::uint32_t token_count = 0;
  std::uint32_t prompt_count = 0;
  std::uint32_t step_count = 0;
  std::uint32_t origin_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Header) == kHeaderBytes - 12);

struct Limit {
  const char* name;
  std::int64_t value;
  std::int64_t min;
  std::int64_t max;
};

absl::Status CheckLimits(std::span<const Limit> limits) {
  for (const Limit& limit : limits) {
    if (limit.value >= limit.min && limit.value <= limit.max) continue;
    return InvalidArgument("trace: {} is {}, not {} to {}", limit.name, limit.value, limit.min,
                           limit.max);
  }
  return absl::OkStatus();
}

absl::Status CheckHeader(const Header& header) {
  const std::int64_t tokens = header.token_count;
  const Limit limits[] = {
      {"number of layers", header.layer_count, 1, kLayerCountMax},
      {"number of KV heads", header.kv_head_count, 1, kHeadCountMax},
      {"number of query heads of a KV head", header.group_size, 1, kGroupSizeMax},
      {"head size", header.head_dim, 1, kHeadDimMax},
      {"number of recorded layers", header.recorded_layers, 1, header.layer_count},
      {"number of recorded KV heads", header.recorded_heads, 1, header.kv_head_count},
      {"number of tokens", tokens, 1, kTraceTokensMax},
      {"number of prompt tokens", header.prompt_count, 0, tokens},
      {"number of steps", header.step_count, 0, tokens},
      {"length of the origin", header.origin_bytes, 0, kTraceOriginBytesMax},
      {"reserved field", header.reserved, 0, 0},
  };
  return CheckLimits(limits);
}

// Within CheckHeader's limits every product is below 2^62.
std::int64_t FileBytes(const Header& header) {
  const std::int64_t rows =
      static_cast<std::int64_t>(header.recorded_layers) * header.recorded_heads * header.head_dim;
  const std::int64_t values =
      rows * header.token_count + rows * header.step_count * header.group_size;
  const std::int64_t numbers =
      static_cast<std::int64_t>(header.recorded_layers) + header.recorded_heads + header.step_count;
  return kHeaderBytes + header.origin_bytes + 4 * numbers + 2 * values + kCrcBytes;
}

absl::Status CheckAscending(const char* name, std::span<const std::int32_t> numbers,
                            std::int64_t end) {
  std::int64_t last = -1;
  for (const std::int32_t number : numbers) {
    if (number <= last || number >= end) {
      return InvalidArgument("trace: {} {} is not above {} and below {}", name, number, last, end);
    }
    last = number;
  }
  return absl::OkStatus();
}

Header HeaderOf(const Trace& trace) {
  // What no field can hold is above all limits.
  constexpr auto kNumberMax = std::numeric_limits<std::uint32_t>::max();
  const auto number = [](std::int64_t value) {
    return value >= 0 && value < kNumberMax ? static_cast<std::uint32_t>(value) : kNumberMax;
  };
  return {number(trace.layer_count),
          number(trace.kv_head_count),
          number(trace.group_size),
          number(trace.head_dim),
          number(std::ssize(trace.layers)),
          number(std::ssize(trace.kv_heads)),
          number(trace.token_count),
          number(trace.prompt_count),
          number(std::ssize(trace.steps)),
          number(std::ssize(trace.origin)),
          0};
}

template <typename T>
void PutAll(std::span<const T> values, std::string& out) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Takes values off the front. REQUIRES: that many bytes are there.
template <typename T>
void TakeAll(std::string_view& bytes, std::int64_t count, std::vector<T>& out) {
  out.resize(static_cast<std::size_t>(count));
  const std::size_t size = out.size() * sizeof(T);
  CAIRN_CHECK_LE(size, bytes.size());
  if (size > 0) std::memcpy(out.data(), bytes.data(), size);
  bytes.remove_prefix(size);
}

std::uint32_t CrcOf(std::string_view bytes) {
  return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

}  // namespace

std::int64_t Trace::key_value_count() const {
  return std::ssize(layers) * std::ssize(kv_heads) * token_count * head_dim;
}

std::int64_t Trace::query_value_count() const {
  return std::ssize(steps) * std::ssize(layers) * std::ssize(kv_heads) * group_size * head_dim;
}

std::span<const std::uint16_t> Trace::Key(std::int64_t layer, std::int64_t head,
                                          std::int64_t token) const {
  const std::int64_t row = (layer * std::ssize(kv_heads) + head) * token_count + token;
  return std::span(keys).subspan(static_cast<std::size_t>(row * head_dim),
                                 static_cast<std::size_t>(head_dim));
}

std::span<const std::uint16_t> Trace::Queries(std::int64_t step, std::int64_t layer,
                                              std::int64_t head) const {
  const std::int64_t values = static_cast<std::int64_t>(group_size) * head_dim;
  const std::int64_t row = (step * std::ssize(layers) + layer) * std::ssize(kv_heads) + head;
  return std::span(queries).subspan(static_cast<std::size_t>(row * values),
                                    static_cast<std::size_t>(values));
}

absl::Status Trace::Validate() const {
  CAIRN_RETURN_IF_ERROR(CheckHeader(HeaderOf(*this)));
  const Limit sizes[] = {
      {"number of key values", std::ssize(keys), key_value_count(), key_value_count()},
      {"number of query values", std::ssize(queries), query_value_count(), query_value_count()},
      {"size in bytes", FileBytes(HeaderOf(*this)), 0, kTraceBytesMax},
  };
  CAIRN_RETURN_IF_ERROR(CheckLimits(sizes));
  CAIRN_RETURN_IF_ERROR(CheckAscending("layer", layers, layer_count));
  CAIRN_RETURN_IF_ERROR(CheckAscending("KV head", kv_heads, kv_head_count));
  return CheckAscending("step", steps, token_count);
}

std::string EncodeTrace(const Trace& trace) {
  const absl::Status valid = trace.Validate();
  CAIRN_CHECK(valid.ok());
  const Header header = HeaderOf(trace);
  std::string out(kMagic);
  out.reserve(static_cast<std::size_t>(FileBytes(header)));
  const std::uint32_t version = kTraceVersion;
  PutAll(std::span(&version, 1), out);
  PutAll(std::span(&header, 1), out);
  out += trace.origin;
  PutAll(std::span(trace.layers), out);
  PutAll(std::span(trace.kv_heads), out);
  PutAll(std::span(trace.steps), out);
  PutAll(std::span(trace.keys), out);
  PutAll(std::span(trace.queries), out);
  const std::uint32_t crc = CrcOf(out);
  PutAll(std::span(&crc, 1), out);
  return out;
}

absl::StatusOr<Trace> DecodeTrace(std::string_view bytes) {
  if (std::ssize(bytes) < kHeaderBytes + kCrcBytes || !bytes.starts_with(kMagic)) {
    return InvalidArgument("trace: {} bytes that do not begin as a trace does", bytes.size());
  }
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + kMagic.size(), sizeof(version));
  if (version != static_cast<std::uint32_t>(kTraceVersion)) {
    return FailedPrecondition("trace: format version {}; this program reads version {}", version,
                              kTraceVersion);
  }
  Header header;
  std::memcpy(&header, bytes.data() + kMagic.size() + sizeof(version), sizeof(header));
  CAIRN_RETURN_IF_ERROR(CheckHeader(header));
  const std::int64_t want_bytes = FileBytes(header);
  if (std::ssize(bytes) != want_bytes || want_bytes > kTraceBytesMax) {
    return InvalidArgument("trace: {} bytes, and its header says {} (at most {})", bytes.size(),
                           want_bytes, kTraceBytesMax);
  }
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + bytes.size() - kCrcBytes, sizeof(crc));
  bytes.remove_suffix(kCrcBytes);
  if (crc != CrcOf(bytes)) {
    return DataLoss("trace: its checksum is {:08x}, and {:08x} is stored", CrcOf(bytes), crc);
  }
  bytes.remove_prefix(kHeaderBytes);
  Trace trace;
  trace.layer_count = static_cast<std::int32_t>(header.layer_count);
  trace.kv_head_count = static_cast<std::int32_t>(header.kv_head_count);
  trace.group_size = static_cast<std::int32_t>(header.group_size);
  trace.head_dim = static_cast<std::int32_t>(header.head_dim);
  trace.token_count = header.token_count;
  trace.prompt_count = header.prompt_count;
  trace.origin = bytes.substr(0, header.origin_bytes);
  bytes.remove_prefix(header.origin_bytes);
  TakeAll(bytes, header.recorded_layers, trace.layers);
  TakeAll(bytes, header.recorded_heads, trace.kv_heads);
  TakeAll(bytes, header.step_count, trace.steps);
  TakeAll(bytes, trace.key_value_count(), trace.keys);
  TakeAll(bytes, trace.query_value_count(), trace.queries);
  CAIRN_RETURN_IF_ERROR(trace.Validate());
  return trace;
}

absl::Status WriteTraceFile(const std::string& path, const Trace& trace) {
  CAIRN_RETURN_IF_ERROR(Annotate(trace.Validate(), fmt::format("write {}", path)));
  const std::string bytes = EncodeTrace(trace);
  FileHandle file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("create {}", path));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  const int write_error = errno;
  const bool closed = std::fclose(file.release()) == 0;
  if (written && closed) return absl::OkStatus();
  const int error_number = written ? errno : write_error;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  return ErrnoStatus(error_number, fmt::format("write {} bytes to {}", bytes.size(), path));
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("open {}", path));
  struct stat info {};
  if (::fstat(::fileno(file.get()), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("stat {}", path));
  }
  if (info.st_size > kTraceBytesMax) {
    return InvalidArgument("read {}: {} bytes; a trace has at most {}", path, info.st_size,
                           kTraceBytesMax);
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  const std::size_t size = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (std::ferror(file.get()) != 0) return ErrnoStatus(errno, fmt::format("read {}", path));
  bytes.resize(size);
  absl::StatusOr<Trace> trace = DecodeTrace(bytes);
  if (!trace.ok()) return Annotate(trace.status(), fmt::format("read {}", path));
  return trace;
}

}  // namespace cairn
