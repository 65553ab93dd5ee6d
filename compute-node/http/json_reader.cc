#include "compute-node/http/json_reader.h"

#include "compute-node/http/api_error.h"

namespace cairn::compute {
namespace {

// What the parser is going to make of `text`, before it does.
absl::Status CheckSize(std::string_view text) {
  std::int64_t values = 1;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == ',' || c == ':') ++values;
    if (c == ']' || c == '}') --depth;
    if ((c == '[' || c == '{') && ++depth > kJsonDepthMax) {
      return InvalidArgument("the body has more than {} values in each other", kJsonDepthMax);
    }
    if (values > kJsonValuesMax) {
      return InvalidArgument("the body has more than {} values", kJsonValuesMax);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  CAIRN_RETURN_IF_ERROR(CheckSize(text));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument("the body is not valid JSON in UTF-8");
  if (!json.is_object()) return InvalidArgument("the body must be a JSON object");
  return json;
}

const Json* FindField(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<bool>> ReadBool(const Json& object, const char* name) {
  const Json* field = FindField(object, name);
  if (field == nullptr) return std::optional<bool>();
  if (!field->is_boolean()) return FieldError(name, "it must be true or false");
  return std::optional<bool>(field->get<bool>());
}

absl::StatusOr<std::optional<double>> ReadNumber(const Json& object, const char* name, double min,
                                                 double max) {
  const Json* field = FindField(object, name);
  if (field == nullptr) return std::optional<double>();
  const double value = field->is_number() ? field->get<double>() : min - 1;
  if (value >= min && value <= max) return std::optional<double>(value);
  return FieldError(name, fmt::format("it must be a number from {} to {}", min, max));
}

absl::StatusOr<std::optional<std::int64_t>> ReadInteger(const Json& object, const char* name,
                                                        std::int64_t min, std::int64_t max) {
  const Json* field = FindField(object, name);
  if (field == nullptr) return std::optional<std::int64_t>();
  if (field->is_number_integer() &&
      !(field->is_number_unsigned() && field->get<std::uint64_t>() > std::uint64_t{INT64_MAX})) {
    const auto value = field->get<std::int64_t>();
    if (value >= min && value <= max) return std::optional<std::int64_t>(value);
  }
  return FieldError(name, fmt::format("it must be a whole number from {} to {}", min, max));
}

}  // namespace cairn::compute
