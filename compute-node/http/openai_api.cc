#include "compute-node/http/openai_api.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <random>

#include <absl/strings/ascii.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include "common/base/error_reason.h"
#include "common/rpc/status_mapping.h"
#include "compute-node/http/api_error.h"
#include "compute-node/http/listen_address.h"
#include "compute-node/http/stream_comments.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelPathStart = "/v1/models/";
constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kCompletionPath = "/v1/completions";
constexpr std::string_view kHealthPath = "/health";
constexpr std::string_view kBearer = "Bearer ";

bool IsPost(std::string_view path) { return path == kChatPath || path == kCompletionPath; }

bool IsGet(std::string_view path) {
  return path == kModelsPath || path == kHealthPath ||
         (path.starts_with(kModelPathStart) && path.size() > kModelPathStart.size());
}

// Takes as long whichever byte differs, and says nothing of the key but its length.
bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

bool IsJson(std::string_view content_type) {
  const std::string_view media = content_type.substr(0, content_type.find(';'));
  return EqualsIgnoreCase(media.substr(0, media.find_last_not_of(" \t") + 1), "application/json");
}

// JSON is UTF-8, whatever a parameter says; one that says otherwise is from a client that does not
// know, and whose text would be read wrongly.
bool IsUtf8(std::string_view content_type) {
  const std::vector<std::string> parameters =
      absl::StrSplit(absl::string_view(content_type.data(), content_type.size()), ';');
  for (const std::string& parameter : parameters) {
    const std::string text =
        absl::StrReplaceAll(absl::AsciiStrToLower(parameter), {{" ", ""}, {"\t", ""}, {"\"", ""}});
    if (text.starts_with("charset=") && text != "charset=utf-8" && text != "charset=utf8" &&
        text != "charset=us-ascii") {
      return false;
    }
  }
  return true;
}

// What the rest of an Origin is, if that is of no other page than one of this server's.
constexpr std::string_view kOriginStart = "http://";

// Browsers say with each request which page it comes from; nobody else says anything.
absl::Status CheckOrigin(const HttpRequest& request) {
  const std::string_view origin = request.Header("Origin");
  const bool is_own = origin.starts_with(kOriginStart) &&
                      EqualsIgnoreCase(origin.substr(kOriginStart.size()), request.Header("Host"));
  if (request.HeaderCount("Origin") != 0 && !is_own) {
    return PermissionDenied(
        "the request comes from a web page of '{}': pages of other origins are not served; a "
        "proxy in front of a page of yours must take Origin away",
        origin);
  }
  const std::string_view site = request.Header("Sec-Fetch-Site");
  if (site.empty() || site == "same-origin" || site == "none") return absl::OkStatus();
  return PermissionDenied(
      "the request comes from a web page (Sec-Fetch-Site is '{}'): pages of other origins are not "
      "served",
      site);
}

std::int64_t NowSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string ModelName(const Runtime& runtime) {
  std::string name = rpc::CleanMessage(runtime.model->config().name);
  return name.empty() ? "cairn" : name;
}

OrderedJson ModelObject(const Runtime& runtime) {
  return {{"id", ModelName(runtime)},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "cairn"},
          {"context_length", ContextTokensMax(runtime.options, runtime.model->config())}};
}

HttpReply JsonReply(const OrderedJson& json) {
  return {.body = json.dump(), .headers = {}, .stream = {}};
}

ReplyHead MakeHead(ApiKind kind, const Runtime& runtime) {
  std::random_device random;
  ReplyHead head;
  head.id = fmt::format("{}-{:08x}{:08x}{:08x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl",
                        random(), random(), random());
  head.created_s = NowSeconds();
  head.model = ModelName(runtime);
  head.fingerprint = "cairn-";
  for (const char c : runtime.served.base.key.model_digest.substr(0, 4)) {
    head.fingerprint += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return head;
}

bool IsEnd(const v1::GenerateEvent& event, const Runtime& runtime) {
  return event.has_token() && runtime.tokenizer->IsEndOfGeneration(event.token().id());
}

// What a stream needs until its end.
struct Stream {
  std::shared_ptr<Runtime> runtime;
  const DaemonState& state;
  std::shared_ptr<GenerateJob> job;
  OpenAiReply reply;
  StreamComments comments;
};

// Returns when all of the stream but an error is written, or cannot be.
bool WriteEvents(Stream& stream, std::optional<v1::GenerateEvent> event, const HttpWrite& write,
                 const HttpConnected& connected) {
  bool written = true;
  const auto there = [&] { return written && connected(); };
  do {
    if (event.has_value()) {
      stream.comments.Note(*event);
      stream.reply.Add(*event, IsEnd(*event, *stream.runtime));
    }
    std::string text = stream.reply.TakeChunks();
    const auto now = StreamComments::Clock::now();
    const bool is_silent = text.empty() && now >= stream.comments.due();
    if (is_silent) text = stream.comments.Text(stream.state.kv_status());
    if (!text.empty()) {
      written = written && write(text);
      stream.comments.NoteWritten(now);
    }
    event = NextEvent(*stream.job, there, stream.comments.due());
  } while (event.has_value() || !stream.job->events().done());
  return written;
}

bool WriteStream(Stream& stream, const std::optional<v1::GenerateEvent>& first,
                 const HttpWrite& write, const HttpConnected& connected) {
  bool written = WriteEvents(stream, first, write, connected);
  const absl::Status status = stream.job->status();
  if (!status.ok()) written = written && write("data: " + ErrorJson(status) + "\n\n");
  return written;
}

// A context that is too short has a code of its own.
absl::Status WithContextCode(absl::Status status) {
  if (ReasonOf(status) != ErrorReason::kContextTooShort) return status;
  return WithApiCode(std::move(status), "context_length_exceeded");
}

}  // namespace

absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("read the API key in {}", path));
  }
  // Opening a pipe would wait for its other end.
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("the API key in {}: it is no file", path);
  }
  std::ifstream file(path);
  std::string key;
  if (!file) return ErrnoStatus(errno, fmt::format("read the API key in {}", path));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return InvalidArgument("the API key in {} has mode {:04o}: others may use it; chmod 600 it",
                           path, info.st_mode & 07777);
  }
  // Read no more than a key has, however long the file is.
  key.resize(static_cast<std::size_t>(kApiKeyBytesMax) + 1);
  file.read(key.data(), std::ssize(key));
  key.resize(static_cast<std::size_t>(file.gcount()));
  key.resize(std::min(key.size(), key.find_first_of("\r\n")));
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!printable || std::ssize(key) < kApiKeyBytesMin || std::ssize(key) > kApiKeyBytesMax) {
    return InvalidArgument(
        "the first line of {} is no API key: it must be {} to {} ASCII characters without spaces",
        path, kApiKeyBytesMin, kApiKeyBytesMax);
  }
  return key;
}

HttpReply OpenAiApi::Admit(const HttpRequest& request) {
  const absl::Status caller = CheckCaller(request);
  if (!caller.ok()) return ErrorReply(caller);
  const bool is_post = IsPost(request.path);
  if (!is_post && !IsGet(request.path)) {
    return ErrorReply(
        WithApiCode(NotFound("there is no '{}': {}, {}, {} and {} are served", request.path,
                             kChatPath, kCompletionPath, kModelsPath, kHealthPath),
                    "unknown_url"));
  }
  // The library leaves out the body of a reply to HEAD.
  const bool is_head = request.method == "HEAD" && !is_post;
  if (!is_head && request.method != (is_post ? "POST" : "GET")) {
    HttpReply reply = ErrorReply(
        405, InvalidArgument("{} takes {} only", request.path, is_post ? "POST" : "GET"));
    reply.headers.emplace_back("Allow", is_post ? "POST" : "GET, HEAD");
    return reply;
  }
  // Also because a browser asks first before a web page may send this type elsewhere.
  if (is_post && !IsJson(request.Header("Content-Type"))) {
    return ErrorReply(415, InvalidArgument("Content-Type is '{}': it must be application/json",
                                           request.Header("Content-Type")));
  }
  if (is_post && !IsUtf8(request.Header("Content-Type"))) {
    return ErrorReply(415, InvalidArgument("Content-Type is '{}': JSON is sent as UTF-8",
                                           request.Header("Content-Type")));
  }
  return {};
}

absl::Status OpenAiApi::CheckCaller(const HttpRequest& request) const {
  const std::string_view host = request.Header("Host");
  if (!IsLoopbackHost(host)) {
    return PermissionDenied(
        "the Host header is '{}': it must be localhost or a loopback address, so that no web page "
        "reaches this through a name of its own",
        host);
  }
  CAIRN_RETURN_IF_ERROR(CheckOrigin(request));
  if (api_key_.empty() || request.path == kHealthPath) return absl::OkStatus();
  const std::string_view given = request.Header("Authorization");
  if (EqualsIgnoreCase(given.substr(0, kBearer.size()), kBearer) &&
      EqualInConstantTime(given.substr(kBearer.size()), api_key_)) {
    return absl::OkStatus();
  }
  return WithApiCode(Unauthenticated("{}: send the daemon's key as Authorization: Bearer KEY",
                                     given.empty() ? "no API key" : "wrong API key"),
                     "invalid_api_key");
}

HttpReply OpenAiApi::Answer(HttpRequest& request, const HttpConnected& connected) {
  const absl::StatusOr<std::shared_ptr<Runtime>> loaded = state_.runtime();
  if (!loaded.ok()) return ErrorReply(loaded.status());
  const std::shared_ptr<Runtime>& runtime = *loaded;
  if (request.path == kChatPath) return Generate(ApiKind::kChat, runtime, request, connected);
  if (request.path == kCompletionPath) {
    return Generate(ApiKind::kCompletion, runtime, request, connected);
  }
  if (request.path == kHealthPath) {
    const absl::Status kv_status = state_.kv_status();
    return kv_status.ok() ? JsonReply({{"status", "ok"}}) : ErrorReply(kv_status);
  }
  if (request.path == kModelsPath) {
    return JsonReply({{"object", "list"}, {"data", OrderedJson::array({ModelObject(*runtime)})}});
  }
  const std::string id = request.path.substr(kModelPathStart.size());
  if (id == ModelName(*runtime)) return JsonReply(ModelObject(*runtime));
  return ErrorReply(WithApiCode(
      NotFound("there is no model '{}': this daemon serves '{}'", id, ModelName(*runtime)),
      "model_not_found"));
}

absl::StatusOr<std::shared_ptr<GenerateJob>> OpenAiApi::MakeJob(
    const std::shared_ptr<Runtime>& runtime, HttpRequest& request, ApiRequest& parsed) {
  CAIRN_ASSIGN_OR_RETURN(parsed, ParseApiRequest(parsed.kind, request.body, request.memory));
  request.body = std::string();
  parsed.generate.set_ephemeral(true);
  CAIRN_ASSIGN_OR_RETURN(
      std::shared_ptr<GenerateJob> job,
      GenerateJob::Make(parsed.generate, runtime, state_, StopSignal::Clock::time_point::max(),
                        ClientHistory::kSentAgain));
  // Its socket sees better what it has read.
  job->events().TrustReader();
  parsed.generate.clear_prompt();
  request.memory.Release();
  return job;
}

HttpReply OpenAiApi::Generate(ApiKind kind, const std::shared_ptr<Runtime>& runtime,
                              HttpRequest& http_request, const HttpConnected& connected) {
  ApiRequest request;
  request.kind = kind;
  const absl::StatusOr<std::shared_ptr<GenerateJob>> made = MakeJob(runtime, http_request, request);
  if (!made.ok()) return ErrorReply(WithContextCode(made.status()));
  const std::shared_ptr<GenerateJob>& job = *made;
  const absl::Status submitted = queue_.Submit(job->stop(), [job] { job->Run(); });
  // Its limit is one that passes; those of the store do not.
  if (absl::IsResourceExhausted(submitted)) return ErrorReply(429, submitted);
  if (!submitted.ok()) return ErrorReply(submitted);
  // Until the first event, or until a stream must say something, an error has a status of its own.
  const StreamComments comments(StreamComments::Clock::now());
  const auto until = request.stream ? comments.due() : StreamComments::Clock::time_point::max();
  const std::optional<v1::GenerateEvent> first = NextEvent(*job, connected, until);
  if (!first.has_value() && job->events().done()) {
    return ErrorReply(WithContextCode(job->status()));
  }
  OpenAiReply reply(request, MakeHead(kind, *runtime));
  if (request.stream) {
    const auto stream =
        std::make_shared<Stream>(Stream{runtime, state_, job, std::move(reply), comments});
    return {.body = "",
            .headers = {},
            .stream = [stream, first](const HttpWrite& write, const HttpConnected& there) {
              return WriteStream(*stream, first, write, there);
            }};
  }
  reply.Add(*first, false);
  while (const std::optional<v1::GenerateEvent> event = NextEvent(*job, connected)) {
    reply.Add(*event, IsEnd(*event, *runtime));
  }
  if (!job->status().ok()) return ErrorReply(job->status());
  return {.body = reply.WholeAnswer(), .headers = {}, .stream = {}};
}

}  // namespace cairn::compute
