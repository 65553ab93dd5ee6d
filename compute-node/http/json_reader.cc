#include "compute-node/http/json_reader.h"

#include <cmath>

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

// Reads nothing but where the text stops being JSON.
class JsonErrorFinder final : public Json::json_sax_t {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    position_ = position;
    return false;
  }
  std::size_t position() const { return position_; }

 private:
  std::size_t position_ = 0;
};

// Also 16.0: in some languages every number of JSON is a floating one.
std::optional<std::int64_t> WholeNumber(const Json& field) {
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (field.is_number_unsigned() && field.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
    return std::nullopt;
  }
  if (field.is_number_integer()) return field.get<std::int64_t>();
  if (!field.is_number()) return std::nullopt;
  const auto value = field.get<double>();
  const bool whole = std::abs(value) <= kExactMax && std::trunc(value) == value;
  return whole ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt;
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  CAIRN_RETURN_IF_ERROR(CheckSize(text));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    JsonErrorFinder finder;
    Json::sax_parse(text, &finder);
    return InvalidArgument("the body is not valid JSON in UTF-8: see byte {} of {}",
                           finder.position(), text.size());
  }
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
  const std::optional<std::int64_t> value = WholeNumber(*field);
  if (value.has_value() && *value >= min && *value <= max) return value;
  return FieldError(name, fmt::format("it must be a whole number from {} to {}", min, max));
}

}  // namespace cairn::compute
