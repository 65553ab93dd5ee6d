#include "common/daemon/config_file.h"

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>

#include "common/base/check.h"
#include "common/daemon/config_error.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;
using ProtoMessage = google::protobuf::Message;

constexpr std::size_t kColumns = 100;

// What stands above the field in its .proto file, in lines of "# ...".
std::string CommentLines(const FieldDescriptor& described, const std::string& indent) {
  google::protobuf::SourceLocation source;
  CAIRN_CHECK(described.GetSourceLocation(&source));
  std::istringstream words(source.leading_comments);
  std::string out;
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.clear();
    }
    line += line.empty() ? indent + "# " : " ";
    line += word;
  }
  return out + line + "\n";
}

std::string ValueText(const ProtoMessage& message, const FieldDescriptor& key, int element) {
  const bool is_mode = key.name().ends_with("_mode");  // of a file
  if (is_mode && key.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    return fmt::format("0{:o}", message.GetReflection()->GetUInt32(message, &key));
  }
  TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string value;
  printer.PrintFieldValueToString(message, &key, element, &value);
  return value;
}

// `described`: the message's type with comments; null prints none.
std::string Print(const ProtoMessage& message, const Descriptor* described,
                  const std::string& indent) {
  const Descriptor& keys = *message.GetDescriptor();
  const Reflection& reflection = *message.GetReflection();
  std::string out;
  for (int i = 0; i < keys.field_count(); ++i) {
    const FieldDescriptor& key = *keys.field(i);
    const FieldDescriptor* text = described == nullptr ? nullptr : described->field(i);
    if (text != nullptr) out += (i > 0 ? "\n" : "") + CommentLines(*text, indent);
    if (key.message_type() != nullptr) {
      const Descriptor* inner = text == nullptr ? nullptr : text->message_type();
      out += fmt::format("{}{} {{\n{}{}}}\n", indent, key.name(),
                         Print(reflection.GetMessage(message, &key), inner, indent + "  "), indent);
      continue;
    }
    const int count = key.is_repeated() ? reflection.FieldSize(message, &key) : 1;
    if (count == 0 && text != nullptr) out += fmt::format("{}# {}: ...\n", indent, key.name());
    for (int element = 0; element < count; ++element) {
      out += fmt::format("{}{}: {}\n", indent, key.name(),
                         ValueText(message, key, key.is_repeated() ? element : -1));
    }
  }
  return out;
}

// Where the file at `path` gave each of `keys` and of the keys in their groups.
void AddPlaces(const Descriptor& keys, const TextFormat::ParseInfoTree& lines,
               const std::string& path, ConfigPlaces& places) {
  for (int i = 0; i < keys.field_count(); ++i) {
    const FieldDescriptor* key = keys.field(i);
    const int element = key->is_repeated() ? 0 : -1;
    const int line = lines.GetLocation(key, element).line;
    if (line < 0) continue;
    places[key->name()] = fmt::format("{}:{}", path, line + 1);
    if (key->message_type() == nullptr) continue;
    if (const TextFormat::ParseInfoTree* inner = lines.GetTreeForNested(key, element)) {
      AddPlaces(*key->message_type(), *inner, path, places);
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadConfigText(const std::string& path) {
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

absl::Status ReadConfigFile(const std::string& path, google::protobuf::Message& config,
                            ConfigPlaces& places) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path));
  const Descriptor& keys = *config.GetDescriptor();
  ConfigError error(keys, text);
  TextFormat::ParseInfoTree lines;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.AllowUnknownField(false);
  parser.WriteLocationsTo(&lines);
  // Into a message of its own: merging at once would let a key be given twice.
  const std::unique_ptr<ProtoMessage> given(config.New());
  if (!parser.ParseFromString(text, given.get())) {
    return InvalidArgument("{}:{}; --print-default-config shows every key", path, error.what());
  }
  config.MergeFrom(*given);
  AddPlaces(keys, lines, path, places);
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

std::string PrintConfig(const google::protobuf::Message& config) {
  return Print(config, nullptr, "");
}

std::string PrintConfigWithComments(const google::protobuf::Message& config,
                                    std::span<const unsigned char> descriptor_set) {
  google::protobuf::FileDescriptorSet set;
  CAIRN_CHECK(set.ParseFromArray(descriptor_set.data(), static_cast<int>(descriptor_set.size())));
  DescriptorPool pool;
  for (const auto& file : set.file()) CAIRN_CHECK(pool.BuildFile(file) != nullptr);
  const Descriptor* described =
      pool.FindMessageTypeByName(std::string(config.GetDescriptor()->full_name()));
  CAIRN_CHECK(described != nullptr);
  return Print(config, described, "");
}

}  // namespace cairn
