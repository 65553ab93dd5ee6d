#include "common/daemon/config_file.h"

#include <cerrno>
#include <fstream>
#include <memory>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include "common/base/check.h"
#include "common/daemon/config_error.h"

namespace cairn {
namespace {

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
  ConfigError error(*keys, text);
  google::protobuf::TextFormat::ParseInfoTree lines;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.AllowUnknownField(false);
  parser.WriteLocationsTo(&lines);
  // Into a message of its own: merging at once would let a key be given twice.
  const std::unique_ptr<google::protobuf::Message> given(config.New());
  if (!parser.ParseFromString(text, given.get())) {
    return InvalidArgument("{}:{}; --print-default-config shows every key", path, error.what());
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
