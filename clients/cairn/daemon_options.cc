#include "clients/cairn/daemon_options.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/command/number_check.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

constexpr std::chrono::minutes kLoadTimeMax{30};
constexpr std::chrono::seconds kAppearTimeMax{5};
constexpr std::chrono::milliseconds kAppearCheckInterval{50};

// "ID=BIAS"; nullopt for anything else.
std::optional<LogitBias> ParseLogitBias(const std::string& text) {
  LogitBias bias;
  const char* end = text.data() + text.size();
  const auto id = std::from_chars(text.data(), end, bias.token_id);
  if (id.ec != std::errc() || id.ptr == end || *id.ptr != '=' || bias.token_id < 0) {
    return std::nullopt;
  }
  const auto value = std::from_chars(id.ptr + 1, end, bias.bias);
  if (value.ec != std::errc() || value.ptr != end || !(bias.bias <= 100)) return std::nullopt;
  return bias;
}

// "3%" or "3".
std::optional<float> ParsePercent(const std::string& text) {
  float percent = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, percent);
  if (parsed.ec != std::errc() || !(percent > 0 && percent <= 100)) return std::nullopt;
  const std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  if (!rest.empty() && rest != "%") return std::nullopt;
  return percent;
}

// Decimal digits. The parser would take what is too large for the largest, and -1 for a seed.
template <typename Int>
CLI::Validator NumberFrom(Int min, const std::string& what) {
  const auto check = [min, what](const std::string& text) -> std::string {
    Int value = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    if (parsed.ec == std::errc() && parsed.ptr == end && value >= min) return "";
    return fmt::format("a {} is a number from {} to {}", what, min,
                       std::numeric_limits<Int>::max());
  };
  return {check, "", what};
}

void AddPenaltyOptions(CLI::App& command, GenerateOptions& generate) {
  command
      .add_option("--repeat-penalty", generate.repetition_penalty,
                  "Makes tokens that came already less likely; 1 (default): not")
      ->check(Number(0.1, 10.0));
  command
      .add_option("--presence-penalty", generate.presence_penalty,
                  "Taken from the logits of tokens that came already; default 0")
      ->check(Number(-2.0, 2.0));
  command
      .add_option("--frequency-penalty", generate.frequency_penalty,
                  "The same, for each time that they came; default 0")
      ->check(Number(-2.0, 2.0));
  command
      .add_option("--repeat-last-n", generate.penalty_last_tokens,
                  "How many of the newest tokens these three count; 0 (default): 64, -1: all")
      ->check(WholeNumber(-1, 1 << 24));
  const auto check_bias = [](const std::string& text) -> std::string {
    if (ParseLogitBias(text).has_value()) return "";
    return fmt::format("{} is not ID=BIAS: a token's id, and a number up to 100; -100 bans it",
                       text);
  };
  const auto read_biases = [&generate](const std::vector<std::string>& texts) {
    generate.logit_bias.clear();
    for (const std::string& text : texts) {
      generate.logit_bias.push_back(ParseLogitBias(text).value_or(LogitBias()));
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias", read_biases,
          "ID=BIAS: add this to the logit of a token, -100 bans it; may be repeated")
      ->check(CLI::Validator(check_bias, "", "logit bias"))
      ->expected(1)
      ->allow_extra_args(false)  // what follows is the prompt
      ->take_all();
}

}  // namespace

CLI::Validator ConversationNumber() { return NumberFrom<std::int64_t>(1, "conversation"); }

void AddSocketOption(CLI::App& command, std::string& socket) {
  socket = DefaultComputeSocket();
  command
      .add_option("--socket", socket,
                  "Socket of cairn-compute-node; default: $CAIRN_SOCKET, else where it listens")
      ->capture_default_str();
}

void AddSamplingOptions(CLI::App& command, GenerateOptions& generate) {
  command
      .add_option("--temperature", generate.temperature,
                  "0 (default): always the most likely token; 1: as likely as the model says")
      ->check(Number(0.0, 10.0));
  command.add_option("--top-k", generate.top_k, "Only the K most likely tokens; 0 (default): all")
      ->check(WholeNumber(0, 1 << 22));
  command
      .add_option("--top-p", generate.top_p,
                  "Only the likeliest with this probability; 0 (default): all")
      ->check(Number(0.0, 1.0));
  command
      .add_option(
          "--min-p", generate.min_p,
          "Only tokens with this share of the likeliest one's probability; 0 (default): all")
      ->check(Number(0.0, 1.0));
  command
      .add_option("--typical", generate.typical_p,
                  "Only the most typical tokens with this probability; 0 (default): all")
      ->check(Number(0.0, 1.0));
  command.add_option("--seed", generate.seed, "Equal seeds give equal text; 0 (default): random")
      ->check(NumberFrom<std::uint64_t>(0, "seed"));
  AddPenaltyOptions(command, generate);
}

void AddRetrievalOptions(CLI::App& command, GenerateOptions& generate) {
  command.add_option("--policy", generate.policy,
                     "How a new conversation chooses what each token attends, such as full: "
                     "everything; default: as cairn-compute-node is configured");
  const auto read_percent = [&generate](const std::string& text) {
    generate.select_percent = ParsePercent(text).value_or(0);
  };
  const auto check_percent = [](const std::string& text) -> std::string {
    if (ParsePercent(text).has_value()) return "";
    return fmt::format("{} is no share: a number above 0, up to 100, such as 3%", text);
  };
  command
      .add_option_function<std::string>(
          "--select", read_percent,
          "What each token of a new conversation attends, in percent of its tokens: 3%; not fewer "
          "and not more tokens than cairn-compute-node's select_tokens_min and select_tokens_max")
      ->check(CLI::Validator(check_percent, "", "share"));
  command
      .add_option("--prefill", generate.prefill_tokens_max,
                  "Compute only the first N tokens of the prompt together, the others one by one; "
                  "for measurements")
      ->check(WholeNumber(1, 1 << 24));
}

namespace {

// A person may have started the daemon in the line before; a script waits by itself.
absl::StatusOr<std::unique_ptr<CairnClient>> ConnectWhenThere(const std::string& socket,
                                                              const CancelToken* cancel) {
  const auto deadline = std::chrono::steady_clock::now() + kAppearTimeMax;
  const bool waits = ::isatty(STDERR_FILENO) == 1;
  bool told = false;
  for (;;) {
    absl::StatusOr<std::unique_ptr<CairnClient>> client = CairnClient::Connect(socket);
    const bool is_away = client.status().code() == absl::StatusCode::kUnavailable;
    if (!waits || !is_away || std::chrono::steady_clock::now() >= deadline) return client;
    if (cancel != nullptr && cancel->cancelled()) return client;
    if (!std::exchange(told, true)) {
      WriteNote(fmt::format("waiting up to {} s for cairn-compute-node at {}\n",
                            kAppearTimeMax.count(), socket));
    }
    std::this_thread::sleep_for(kAppearCheckInterval);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CairnClient>> ConnectWhenReady(const std::string& socket,
                                                              ProgressLine& progress,
                                                              const CancelToken* cancel) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<CairnClient> client, ConnectWhenThere(socket, cancel));
  const auto show = [&](const DaemonStatus& status) {
    constexpr std::int64_t kMiB = 1 << 20;
    progress.Update("loading the model", status.model_loaded_bytes / kMiB,
                    status.model_size_bytes / kMiB, "MiB");
  };
  CAIRN_RETURN_IF_ERROR(client->WaitUntilReady(kLoadTimeMax, show, cancel));
  progress.Clear();
  return client;
}

}  // namespace cairn::cli
