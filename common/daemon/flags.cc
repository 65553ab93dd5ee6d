#include "common/daemon/flags.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/closest_name.h"

namespace cairn {

absl::Status ParseFlags(std::span<const char* const> arguments, std::span<const ValueFlag> values,
                        std::span<const SwitchFlag> switches) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const auto is_switch = std::find_if(switches.begin(), switches.end(),
                                        [&](const auto& flag) { return flag.name == argument; });
    if (is_switch != switches.end()) {
      *is_switch->value = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const auto flag = std::find_if(values.begin(), values.end(),
                                   [&](const auto& known) { return known.name == name; });
    if (flag == values.end()) {
      std::vector<std::string> names;
      for (const ValueFlag& known : values) names.emplace_back(known.name.substr(2));
      for (const SwitchFlag& known : switches) names.emplace_back(known.name.substr(2));
      const std::string_view word = name.substr(std::min(name.find_first_not_of('-'), name.size()));
      const std::string meant = ClosestName(word, names);
      return InvalidArgument("unknown argument {}{}: --help shows the flags", argument,
                             meant.empty() ? "" : fmt::format(", did you mean --{}?", meant));
    }
    std::string value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    if (value.empty()) return InvalidArgument("flag {} needs a value", name);
    if (flag->value->has_value()) return InvalidArgument("flag {} is given twice", name);
    *flag->value = std::move(value);
  }
  return absl::OkStatus();
}

absl::Status ParseDaemonFlags(std::span<const char* const> arguments,
                              std::span<const ValueFlag> own, DaemonFlags& flags) {
  std::vector<ValueFlag> values = {{"--config", &flags.config_path},
                                   {"--socket", &flags.socket_path},
                                   {"--log", &flags.log_path},
                                   {"--log-level", &flags.log_level}};
  values.insert(values.end(), own.begin(), own.end());
  const std::array switches = {SwitchFlag{"--print-config", &flags.print_config},
                               SwitchFlag{"--print-default-config", &flags.print_default_config},
                               SwitchFlag{"--version", &flags.version},
                               SwitchFlag{"--help", &flags.help}};
  return ParseFlags(arguments, values, switches);
}

}  // namespace cairn
