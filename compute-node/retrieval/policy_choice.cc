#include "compute-node/retrieval/policy_choice.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/policy_registry.h"

namespace cairn::compute {
namespace {

bool MaySelectAhead(std::string_view name) {
  const PolicyKind* kind = FindPolicyKind(name);
  return kind != nullptr && kind->may_select_ahead;
}

template <typename Number>
void AppendNumber(std::string& out, Number number) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &number, sizeof(Number));
  out.append(bytes, sizeof(Number));
}

// False if `in` is too short.
template <typename Number>
bool TakeNumber(std::string_view& in, Number& number) {
  if (in.size() < sizeof(Number)) return false;
  std::memcpy(&number, in.data(), sizeof(Number));
  in.remove_prefix(sizeof(Number));
  return true;
}

bool TakeName(std::string_view& in, std::string& name) {
  std::uint8_t bytes = 0;
  if (!TakeNumber(in, bytes) || bytes == 0 || bytes > kPolicyNameBytesMax || bytes > in.size()) {
    return false;
  }
  name = in.substr(0, bytes);
  in.remove_prefix(bytes);
  // It comes into messages.
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

bool TakeSelection(std::string_view& in, std::int32_t version, SelectionOptions& selection) {
  const bool taken =
      TakeNumber(in, selection.select_percent) && TakeNumber(in, selection.select_tokens_min) &&
      TakeNumber(in, selection.select_tokens_max) &&
      TakeNumber(in, selection.cluster_target_entries) && TakeNumber(in, selection.seed);
  selection.select_ahead = version == kForeseeingPolicyVersion;
  if (!taken || version < kEstimatingPolicyVersion) return taken;
  // Without any the other version is written.
  return TakeNumber(in, selection.estimate_percent) &&
         (selection.select_ahead || selection.estimate_percent > 0);
}

std::int32_t WrappedVersion(const SelectionOptions& selection) {
  if (selection.select_ahead) return kForeseeingPolicyVersion;
  return selection.estimate_percent > 0 ? kEstimatingPolicyVersion : kWrappedPolicyVersion;
}

}  // namespace

// Of one that nobody knows, a stored one, the options count.
bool PolicyChoice::selects() const {
  const PolicyKind* kind = FindPolicyKind(name);
  return kind == nullptr || !kind->attends_everything;
}

absl::Status PolicyChoice::Validate() const {
  if (FindPolicyKind(name) == nullptr) {
    return InvalidArgument("policy is '{}': it must be one of {}", name, PolicyNames());
  }
  return selection.Validate();
}

PolicyChoice PolicyChoice::Normalised() const {
  PolicyChoice normalised = *this;
  if (!MaySelectAhead(name)) normalised.selection.select_ahead = false;
  return normalised;
}

PolicyRequest PolicyRequest::Exactly(const PolicyChoice& choice) {
  const SelectionOptions& selection = choice.selection;
  return {.name = choice.name,
          .select_percent = selection.select_percent,
          .select_tokens_min = selection.select_tokens_min,
          .select_tokens_max = selection.select_tokens_max,
          .cluster_target_entries = selection.cluster_target_entries,
          .seed = selection.seed,
          .estimate_percent = selection.estimate_percent,
          .select_ahead = selection.select_ahead};
}

PolicyRequest PolicyRequest::Or(const PolicyRequest& other) const {
  const auto either = [](const auto& first, const auto& second) {
    return first.has_value() ? first : second;
  };
  return {.name = either(name, other.name),
          .select_percent = either(select_percent, other.select_percent),
          .select_tokens_min = either(select_tokens_min, other.select_tokens_min),
          .select_tokens_max = either(select_tokens_max, other.select_tokens_max),
          .cluster_target_entries = either(cluster_target_entries, other.cluster_target_entries),
          .seed = either(seed, other.seed),
          .estimate_percent = either(estimate_percent, other.estimate_percent),
          .select_ahead = either(select_ahead, other.select_ahead)};
}

PolicyChoice PolicyRequest::On(PolicyChoice choice) const {
  SelectionOptions& selection = choice.selection;
  choice.name = name.value_or(choice.name);
  selection.select_percent = select_percent.value_or(selection.select_percent);
  selection.select_tokens_min = select_tokens_min.value_or(selection.select_tokens_min);
  selection.select_tokens_max = select_tokens_max.value_or(selection.select_tokens_max);
  selection.cluster_target_entries =
      cluster_target_entries.value_or(selection.cluster_target_entries);
  selection.seed = seed.value_or(selection.seed);
  selection.estimate_percent = estimate_percent.value_or(selection.estimate_percent);
  selection.select_ahead = select_ahead.value_or(selection.select_ahead);
  return choice;
}

std::string Describe(const PolicyChoice& choice, const PolicyChoice& other) {
  std::string text = fmt::format("policy {}", choice.name);
  if (!choice.selects()) return text;
  // As somebody wrote it: most come from a 32-bit number.
  text +=
      fmt::format(" with select_percent {}", static_cast<float>(choice.selection.select_percent));
  if (other.name != choice.name) return text;
  const auto add = [&text](std::string_view what, auto own, auto others) {
    if (own != others) text += fmt::format(", {} {}", what, own);
  };
  const SelectionOptions& a = choice.selection;
  const SelectionOptions& b = other.selection;
  add("select_tokens_min", a.select_tokens_min, b.select_tokens_min);
  add("select_tokens_max", a.select_tokens_max, b.select_tokens_max);
  add("cluster_target_entries", a.cluster_target_entries, b.cluster_target_entries);
  add("seed", a.seed, b.seed);
  add("estimate_percent", static_cast<float>(a.estimate_percent),
      static_cast<float>(b.estimate_percent));
  if (MaySelectAhead(choice.name)) add("select_ahead", a.select_ahead, b.select_ahead);
  return text;
}

PutPolicyState WrapPolicyState(const PolicyChoice& given, PutPolicyState own) {
  const PolicyChoice choice = given.Normalised();
  if (!choice.selects()) {
    CAIRN_CHECK(own.version < kWrappedPolicyVersion);
    return own;
  }
  const std::int64_t name_bytes = std::ssize(choice.name);
  CAIRN_CHECK(name_bytes > 0 && name_bytes <= kPolicyNameBytesMax);
  PutPolicyState wrapped;
  wrapped.version = WrappedVersion(choice.selection);
  AppendNumber(wrapped.state, static_cast<std::uint8_t>(name_bytes));
  wrapped.state += choice.name;
  AppendNumber(wrapped.state, choice.selection.select_percent);
  AppendNumber(wrapped.state, choice.selection.select_tokens_min);
  AppendNumber(wrapped.state, choice.selection.select_tokens_max);
  AppendNumber(wrapped.state, choice.selection.cluster_target_entries);
  AppendNumber(wrapped.state, choice.selection.seed);
  if (wrapped.version >= kEstimatingPolicyVersion) {
    AppendNumber(wrapped.state, choice.selection.estimate_percent);
  }
  AppendNumber(wrapped.state, own.version);
  wrapped.state += own.state;
  return wrapped;
}

absl::StatusOr<UnwrappedPolicyState> UnwrapPolicyState(std::int32_t version,
                                                       std::string_view state) {
  UnwrappedPolicyState out;
  if (version > kForeseeingPolicyVersion) {
    return InvalidArgument("stored policy state has version {}: this Cairn knows those up to {}",
                           version, kForeseeingPolicyVersion);
  }
  if (version < kWrappedPolicyVersion) {
    out.version = version;
    out.state = state;
    return out;
  }
  std::string_view rest = state;
  if (!TakeName(rest, out.choice.name) || !out.choice.selects() ||
      !TakeSelection(rest, version, out.choice.selection) || !TakeNumber(rest, out.version)) {
    return InvalidArgument(
        "stored policy state of {} bytes does not begin with a policy's name and options",
        state.size());
  }
  CAIRN_RETURN_IF_ERROR(Annotate(out.choice.selection.Validate(),
                                 fmt::format("stored options of policy {}", out.choice.name)));
  out.state = rest;
  return out;
}

}  // namespace cairn::compute
