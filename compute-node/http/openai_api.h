// OpenAiApi answers OpenAI's HTTP API with the daemon's model: chat completions, completions and
// the list of models. docs/http.md says what it takes and what it answers.
//
// A generation runs on the same queue, with the same limits, as one over gRPC.
//
// Threading:  safe from any thread.
// Blocking:   Answer for as long as a generation takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "compute-node/http/http_types.h"
#include "compute-node/http/openai_reply.h"
#include "compute-node/http/openai_request.h"
#include "compute-node/service/generate_job.h"
#include "compute-node/service/generation_queue.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

// Of an API key.
inline constexpr std::int64_t kApiKeyBytesMax = 1024;
inline constexpr std::int64_t kApiKeyBytesMin = 8;

// The first line of a file. INVALID_ARGUMENT if it is no key, or others may read the file.
absl::StatusOr<std::string> ReadApiKey(const std::string& path);

class OpenAiApi final : public HttpHandler {
 public:
  // Borrows both; they outlive it. `api_key` empty: nobody is asked for one.
  OpenAiApi(DaemonState& state, GenerationQueue& queue, std::string api_key)
      : state_(state), queue_(queue), api_key_(std::move(api_key)) {}

  HttpReply Admit(const HttpRequest& request) override;
  HttpReply Answer(HttpRequest& request, const HttpConnected& connected) override;

 private:
  absl::Status CheckCaller(const HttpRequest& request) const;
  HttpReply Generate(ApiKind kind, const std::shared_ptr<Runtime>& runtime, HttpRequest& request,
                     const HttpConnected& connected);
  // The job of a request, whose body and memory go.
  absl::StatusOr<std::shared_ptr<GenerateJob>> MakeJob(const std::shared_ptr<Runtime>& runtime,
                                                       HttpRequest& request, ApiRequest& parsed);

  DaemonState& state_;
  GenerationQueue& queue_;
  const std::string api_key_;
};

}  // namespace cairn::compute
