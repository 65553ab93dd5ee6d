#include "compute-node/http/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "compute-node/http/api_error.h"

namespace cairn::compute {
namespace {

// What nlohmann/json calls a number that no double holds.
constexpr int kNumberOutOfRange = 406;
// Of a name in an error.
constexpr std::size_t kQuotedNameBytesMax = 64;

// Makes values of what is kept, and nothing of the rest.
class FieldReader final : public Json::json_sax_t {
 public:
  FieldReader(std::span<const std::string_view> names, MemoryClaim& memory)
      : names_(names), memory_(memory) {}

  bool null() override { return Take(nullptr); }
  bool boolean(bool value) override { return Take(value); }
  bool number_integer(number_integer_t value) override { return Take(value); }
  bool number_unsigned(number_unsigned_t value) override { return Take(value); }
  bool number_float(number_float_t value, const string_t&) override { return Take(value); }
  bool string(string_t& value) override { return Take(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // is not in JSON
  bool start_object(std::size_t) override { return Open(Json::value_t::object); }
  bool start_array(std::size_t) override { return Open(Json::value_t::array); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (depth_ == 1) keeps_ = std::find(names_.begin(), names_.end(), name) != names_.end();
    if (!keeps_) return true;
    const auto [member, is_new] =
        open_.back()->get_ref<Json::object_t&>().try_emplace(std::move(name));
    // Readers differ in which of two they take.
    if (!is_new) {
      status_ = InvalidArgument("the body has '{}' twice in one object",
                                member->first.substr(0, kQuotedNameBytesMax));
      return false;
    }
    member_ = &member->second;
    return Claim(kJsonKeyBytes);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const Json::exception& error) override {
    position_ = position;
    number_is_too_large_ = error.id == kNumberOutOfRange;
    return false;
  }

  // The error, unless it is only that the text is no JSON.
  const absl::Status& status() const { return status_; }
  absl::Status NotJson(std::string_view text) const {
    if (number_is_too_large_) {
      return InvalidArgument("the body has a number that is too large: see byte {} of {}",
                             position_, text.size());
    }
    if (position_ > text.size()) {
      return InvalidArgument("the body is not valid JSON: it ends too early, after {} bytes",
                             text.size());
    }
    return InvalidArgument("the body is not valid JSON in UTF-8: see byte {} of {}", position_,
                           text.size());
  }
  Json& root() { return root_; }

 private:
  // Where the next value goes.
  Json& Place(Json value) {
    if (depth_ == 0) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (!parent.is_array()) return *member_ = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  template <typename Value>
  bool Take(Value&& value) {
    if (depth_ > 0 && !keeps_) return true;
    Place(std::forward<Value>(value));
    return Claim(kJsonValueBytes);
  }
  bool Open(Json::value_t type) {
    if (depth_ == 0 || keeps_) open_.push_back(&Place(type));
    if (++depth_ > kJsonDepthMax) {
      status_ = InvalidArgument("the body has more than {} values in each other", kJsonDepthMax);
      return false;
    }
    return depth_ == 1 || !keeps_ || Claim(kJsonObjectBytes);
  }
  bool Close() {
    --depth_;
    if (depth_ == 0 || keeps_) open_.pop_back();
    return true;
  }
  bool Claim(std::int64_t bytes) {
    free_bytes_ -= bytes;
    if (free_bytes_ >= 0) return true;
    free_bytes_ = kJsonFreeBytes;
    status_ = memory_.Grow(kJsonFreeBytes);
    return status_.ok();
  }

  const std::span<const std::string_view> names_;
  MemoryClaim& memory_;
  Json root_;
  std::vector<Json*> open_;  // the kept ones that have no end yet
  Json* member_ = nullptr;   // of the innermost object, what the last key named
  int depth_ = 0;
  bool keeps_ = false;  // the field that is being read is one of names_
  std::int64_t free_bytes_ = kJsonFreeBytes;
  std::size_t position_ = 0;  // of what is no JSON, counted from 1
  bool number_is_too_large_ = false;
  absl::Status status_;
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

absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::span<const std::string_view> names,
                                     MemoryClaim& memory) {
  FieldReader reader(names, memory);
  const bool is_json = Json::sax_parse(text, &reader);
  CAIRN_RETURN_IF_ERROR(reader.status());
  if (!is_json) return reader.NotJson(text);
  // The parser takes one for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument("the body is not valid JSON: byte {} of {} is NUL", nul + 1,
                           text.size());
  }
  if (!reader.root().is_object()) return InvalidArgument("the body must be a JSON object");
  return std::move(reader.root());
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
