#include "compute-node/model/gguf/gguf_split.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "compute-node/model/gguf/gguf_parser.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kNumberKey = "split.no";
constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kTensorCountKey = "split.tensors.count";
constexpr std::string_view kSplitSuffix = ".gguf";
constexpr std::size_t kNumberDigits = 5;

// The number of kNumberDigits digits, or -1.
std::int64_t ParseDigits(std::string_view text) {
  std::int64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    number = number * 10 + (c - '0');
  }
  return text.size() == kNumberDigits ? number : -1;
}

std::string TextOf(std::optional<std::uint64_t> number) {
  return number ? std::to_string(*number) : "missing";
}

}  // namespace

std::string GgufSplitName::Path(std::int64_t of_number) const {
  return fmt::format("{}-{:05}-of-{:05}{}", prefix, of_number, count, kSplitSuffix);
}

std::optional<GgufSplitName> ParseGgufSplitName(const std::string& path) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kTailBytes = 1 + kNumberDigits + kOf.size() + kNumberDigits;
  const std::string_view view = path;
  if (!view.ends_with(kSplitSuffix) || view.size() < kTailBytes + kSplitSuffix.size()) {
    return std::nullopt;
  }
  const std::string_view stem = view.substr(0, view.size() - kSplitSuffix.size());
  const std::string_view tail = stem.substr(stem.size() - kTailBytes);
  const std::int64_t number = ParseDigits(tail.substr(1, kNumberDigits));
  const std::int64_t count = ParseDigits(tail.substr(kTailBytes - kNumberDigits));
  if (tail[0] != '-' || tail.substr(1 + kNumberDigits, kOf.size()) != kOf || number < 1 ||
      number > count) {
    return std::nullopt;
  }
  return GgufSplitName{std::string(stem.substr(0, stem.size() - kTailBytes)), number, count};
}

absl::Status GgufJoiner::ReadSplitKeys() {
  for (const std::string_view key : {kNumberKey, kCountKey, kTensorCountKey}) {
    if (opened_.Has(key) && !opened_.FindUint(key)) {
      return InvalidArgument("model file '{}': key '{}' is no count", opened_.path(), key);
    }
  }
  const std::uint64_t count = opened_.FindUint(kCountKey).value_or(0);
  const std::uint64_t number = opened_.FindUint(kNumberKey).value_or(0);
  tensor_count_ = opened_.FindUint(kTensorCountKey);
  if (count > static_cast<std::uint64_t>(kGgufSplitCountMax) ||
      number >= std::max<std::uint64_t>(count, 1)) {
    return InvalidArgument(
        "model file '{}': part {} of {} of a split model ({} counts from 0); there may be {} parts "
        "at most",
        opened_.path(), number, count, kNumberKey, kGgufSplitCountMax);
  }
  count_ = static_cast<std::int64_t>(count);
  number_ = static_cast<std::int64_t>(number);
  return absl::OkStatus();
}

// A file that was merged from parts keeps their keys, with a count of 0.
absl::Status GgufJoiner::CheckWhole() const {
  if (tensor_count_ && *tensor_count_ != opened_.tensors().size()) {
    return InvalidArgument(
        "model file '{}' has {} tensors, but {} is {}: it was merged from parts, and not from all "
        "of them",
        opened_.path(), opened_.tensors().size(), kTensorCountKey, *tensor_count_);
  }
  return absl::OkStatus();
}

absl::Status GgufJoiner::CheckPart(const GgufFile& part, std::int64_t index) const {
  const auto expect = [&](std::string_view key, std::optional<std::uint64_t> expected) {
    const std::optional<std::uint64_t> found = part.FindUint(key);
    return found == expected
               ? absl::OkStatus()
               : InvalidArgument(
                     "model file '{}': {} is {}, but as part {} of the model of '{}' it must be "
                     "{}; the files of different models are mixed, or one was renamed",
                     part.path(), key, TextOf(found), index + 1, opened_.path(), TextOf(expected));
  };
  CAIRN_RETURN_IF_ERROR(expect(kNumberKey, static_cast<std::uint64_t>(index)));
  CAIRN_RETURN_IF_ERROR(expect(kCountKey, static_cast<std::uint64_t>(count_)));
  return expect(kTensorCountKey, tensor_count_);
}

// Only the first part's metadata counts. Where another part repeats a key, a difference means that
// it is another model's.
absl::Status GgufJoiner::CheckMetadata(const GgufFile& first, const GgufFile& part) {
  for (const GgufFile::Value& value : part.values_) {
    const GgufFile::Value* other = first.FindValue(value.key);
    if (other == nullptr || value.key == kNumberKey || value.key == "general.alignment") continue;
    const auto bytes = [](const GgufFile::Value& of) {
      return std::span(of.data, GgufElementsBytes(of.element_type, of.count, of.data));
    };
    const auto mine = bytes(value);
    const auto theirs = bytes(*other);
    if (value.type != other->type || value.element_type != other->element_type ||
        !std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) {
      return InvalidArgument(
          "model file '{}': key '{}' differs from that of '{}'; the files of different models are "
          "mixed",
          part.path(), PrintableText(value.key), first.path());
    }
  }
  return absl::OkStatus();
}

absl::Status GgufJoiner::AddTensors(GgufFile& first, const GgufFile& part) {
  if (first.tensors_.size() + part.tensors_.size() > kGgufTensorCountMax) {
    return InvalidArgument("model file '{}': with its {} tensors the model has more than {}",
                           part.path(), part.tensors_.size(), kGgufTensorCountMax);
  }
  for (const GgufTensor& tensor : part.tensors_) {
    if (!first.tensor_index_.emplace(tensor.name, first.tensors_.size()).second) {
      return InvalidArgument("model file '{}': tensor '{}' is in an earlier part of the model too",
                             part.path(), PrintableText(tensor.name));
    }
    first.tensors_.push_back(tensor);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufJoiner::OpenAll(const GgufSplitName& name) const {
  std::unique_ptr<GgufFile> first;
  for (std::int64_t i = 0; i < count_; ++i) {
    absl::StatusOr<std::unique_ptr<GgufFile>> part = GgufFile::OpenOne(name.Path(i + 1));
    if (!part.ok()) {
      return Annotate(part.status(), fmt::format("part {} of {} of the split model of '{}'", i + 1,
                                                 count_, opened_.path()));
    }
    CAIRN_RETURN_IF_ERROR(CheckPart(**part, i));
    if (i == 0) {
      first = *std::move(part);
      continue;
    }
    CAIRN_RETURN_IF_ERROR(CheckMetadata(*first, **part));
    CAIRN_RETURN_IF_ERROR(AddTensors(*first, **part));
    first->more_parts_.push_back(*std::move(part));
  }
  if (tensor_count_ && *tensor_count_ != first->tensors().size()) {
    return InvalidArgument(
        "model file '{}': the {} parts of the model have {} tensors together, but {} is {}",
        first->path(), count_, first->tensors().size(), kTensorCountKey, *tensor_count_);
  }
  return first;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufJoiner::Join(std::unique_ptr<GgufFile> opened) {
  GgufJoiner joiner(*opened);
  CAIRN_RETURN_IF_ERROR(joiner.ReadSplitKeys());
  if (joiner.count_ < 2) {
    CAIRN_RETURN_IF_ERROR(joiner.CheckWhole());
    return opened;
  }
  const std::optional<GgufSplitName> name = ParseGgufSplitName(opened->path());
  if (!name || name->count != joiner.count_ || name->number != joiner.number_ + 1) {
    return InvalidArgument(
        "model file '{}' is part {} of {} of a split model: its name must end in "
        "-{:05}-of-{:05}.gguf, so that the others can be found beside it; give it that name again",
        opened->path(), joiner.number_ + 1, joiner.count_, joiner.number_ + 1, joiner.count_);
  }
  return joiner.OpenAll(*name);
}

}  // namespace cairn::compute
