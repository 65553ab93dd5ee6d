#include "common/daemon/config_file.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "common/base/check.h"

namespace cairn {
namespace {

// Letters to change, add or leave out until `from` is `to`.
std::size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// ": did you mean KEY?", or nothing if no key is like that.
std::string Suggestion(std::string_view unknown, const google::protobuf::Descriptor& keys) {
  constexpr std::size_t kDistanceMax = 3;
  // What is longer is no slip of a key, and comparing it takes time.
  constexpr std::size_t kKeyBytesMax = 64;
  std::string_view best;
  std::size_t best_distance = kDistanceMax + 1;
  for (int i = 0; unknown.size() <= kKeyBytesMax && i < keys.field_count(); ++i) {
    const std::size_t distance = EditDistance(unknown, keys.field(i)->name());
    if (distance >= best_distance) continue;
    best = keys.field(i)->name();
    best_distance = distance;
  }
  return best.empty() ? "" : fmt::format(": did you mean {}?", best);
}

// Keeps the first problem: later ones mostly follow from it.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const google::protobuf::Descriptor& keys) : keys_(keys) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text.empty()) text = fmt::format("{}:{}: {}", line + 1, column + 1, InOurWords(message));
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    AddError(line, column, message);
  }

  std::string text;

 private:
  // protobuf's speak of messages and fields.
  std::string InOurWords(const std::string& message) const {
    constexpr std::string_view kUnknown = "has no field named \"";
    const std::size_t at = message.find(kUnknown);
    if (at == std::string::npos) return message;
    const std::string name = message.substr(at + kUnknown.size());
    const std::string_view unknown = std::string_view(name).substr(0, name.find('"'));
    return fmt::format("there is no key {}{}", unknown, Suggestion(unknown, keys_));
  }

  const google::protobuf::Descriptor& keys_;
};

std::string CommentLines(std::string_view text) {
  std::string out = "# ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "# ";
  }
  return out + "\n";
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return ErrnoStatus(errno != 0 ? errno : ENOENT, fmt::format("open configuration {}", path));
  }
  std::string text;
  text.resize(static_cast<std::size_t>(kConfigBytesMax) + 1);
  file.read(text.data(), std::ssize(text));
  if (file.bad()) {
    return ErrnoStatus(errno != 0 ? errno : EIO, fmt::format("read configuration {}", path));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (std::ssize(text) > kConfigBytesMax) {
    return InvalidArgument("configuration {} has more than {} bytes", path, kConfigBytesMax);
  }
  return text;
}

}  // namespace

absl::Status ReadConfigFile(const std::string& path, google::protobuf::Message& config,
                            ConfigPlaces& places) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const google::protobuf::Descriptor* keys = config.GetDescriptor();
  FirstError error(*keys);
  google::protobuf::TextFormat::ParseInfoTree lines;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.AllowUnknownField(false);
  parser.WriteLocationsTo(&lines);
  // Into a message of its own: merging at once would let a key be given twice.
  const std::unique_ptr<google::protobuf::Message> given(config.New());
  if (!parser.ParseFromString(text, given.get())) {
    return InvalidArgument("{}:{}; --print-default-config shows every key", path, error.text);
  }
  config.MergeFrom(*given);
  for (int i = 0; i < keys->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* key = keys->field(i);
    const int line = lines.GetLocation(key, key->is_repeated() ? 0 : -1).line;
    if (line >= 0) places[key->name()] = fmt::format("{}:{}", path, line + 1);
  }
  return absl::OkStatus();
}

void OverrideKey(std::string_view key, const std::optional<std::string>& flag,
                 google::protobuf::Message& config, ConfigPlaces& places) {
  if (!flag.has_value()) return;
  const std::string name(key);
  config.GetReflection()->SetString(&config, config.GetDescriptor()->FindFieldByName(name), *flag);
  places.erase(name);
}

absl::Status AtItsPlace(const absl::Status& status, const ConfigPlaces& places) {
  const std::string message = Message(status);
  const auto place = places.find(message.substr(0, message.find_first_of(" :")));
  return place == places.end() ? status : Annotate(status, place->second);
}

std::string PrintConfig(const google::protobuf::Message& config, std::span<const ConfigKey> keys,
                        Comments comments) {
  const google::protobuf::Descriptor* descriptor = config.GetDescriptor();
  const google::protobuf::Reflection* reflection = config.GetReflection();
  CAIRN_CHECK_EQ(descriptor->field_count(), static_cast<int>(keys.size()));
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string out;
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    const ConfigKey& key = keys[static_cast<std::size_t>(i)];
    CAIRN_CHECK_EQ(field->name(), key.name);
    if (comments == Comments::kYes) {
      if (i > 0) out += "\n";
      out += CommentLines(key.text);
    }
    const int count = field->is_repeated() ? reflection->FieldSize(config, field) : 1;
    for (int element = 0; element < count; ++element) {
      std::string value;
      printer.PrintFieldValueToString(config, field, field->is_repeated() ? element : -1, &value);
      if (key.is_mode) value = fmt::format("0{:o}", reflection->GetUInt32(config, field));
      out += fmt::format("{}: {}\n", field->name(), value);
    }
  }
  return out;
}

}  // namespace cairn
