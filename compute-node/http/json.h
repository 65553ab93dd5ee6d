// The JSON library's types: what is read keeps no order, what is written does.
#pragma once

#include <nlohmann/json.hpp>

namespace cairn::compute {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

}  // namespace cairn::compute
