// From the JSON of OpenAI's chat completions and completions to a generation. docs/http.md has the
// table of fields.
//
// A field that would change the answer and cannot be followed is an error; one that no field here
// is named after is ignored, as clients send many for other engines, and takes no memory.
//
// Threading:  pure functions.
// Errors:     INVALID_ARGUMENT naming the field. What needs the model (token ids, the template's
//             order of roles, the context) is checked by GenerateJob.
#pragma once

#include <string_view>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"
#include "compute-node/service/memory_budget.h"

namespace cairn::compute {

enum class ApiKind { kChat, kCompletion };

// Of completions, as OpenAI has it. A chat has none but the context's end.
inline constexpr std::int32_t kCompletionTokensMaxDefault = 16;

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  v1::GenerateRequest generate;
  bool stream = false;
  bool include_usage = false;  // in a last chunk of the stream
};

// What is made of the body grows `memory`, whose errors are answered.
absl::StatusOr<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view body,
                                           MemoryClaim& memory);

}  // namespace cairn::compute
