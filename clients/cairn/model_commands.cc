#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "clients/cairn/commands.h"
#include "common/base/status.h"
#include "common/command/input.h"
#include "common/command/number_check.h"
#include "common/command/output.h"
#include "common/kv/kv_format.h"
#include "compute-node/command/model_input.h"
#include "compute-node/kernels/read_bandwidth.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/model/gguf/gguf.h"
#include "compute-node/model/inspect.h"
#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::cli {
namespace {

// Logits go between files and memory as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kTextBytesMax = 1 << 28;

struct InspectCommandOptions {
  std::string model;
  int threads = 0;
  bool no_probe = false;
  bool json = false;
};

absl::Status Inspect(const InspectCommandOptions& options) {
  auto file = compute::GgufFile::Open(options.model);
  CAIRN_RETURN_IF_ERROR(AboutFile(file.status(), options.model));
  compute::InspectOptions inspect;
  if (!options.no_probe) {
    inspect.probe = [&options] {
      // With filling the buffer about 0.3 s.
      constexpr std::chrono::milliseconds kProbeTime{100};
      ThreadPool pool(ThreadCount(options.threads));
      return compute::MeasureReadBandwidth(pool, compute::ReadProbeBufferBytes(), kProbeTime);
    };
  }
  const compute::ModelReport report = compute::InspectModel(**file, inspect);
  return WriteOutput(options.json ? report.json : report.text);
}

absl::Status Tokenize(const std::string& path, bool special) {
  auto file = compute::GgufFile::Open(path);
  CAIRN_RETURN_IF_ERROR(AboutFile(file.status(), path));
  auto tokenizer = compute::Tokenizer::FromGguf(**file);
  CAIRN_RETURN_IF_ERROR(AboutFile(tokenizer.status(), path));
  std::string text;
  CAIRN_ASSIGN_OR_RETURN(text, ReadInput("-", kTextBytesMax));
  const std::vector<std::int32_t> ids =
      (*tokenizer)->Encode(text, {.add_special = special, .parse_special = special});
  return WriteOutput(fmt::format("{}\n", fmt::join(ids, " ")));
}

struct LogitsOptions {
  std::string model;
  std::string tokens;
  std::string output;
  bool all = false;
  std::string kv_format = "f16";
  std::string lora;
  double lora_scale = 1.0;
  int threads = 0;  // 0: one for each processor
};

absl::Status WriteFloats(std::FILE* file, const std::string& path, std::span<const float> values) {
  if (std::fwrite(values.data(), sizeof(float), values.size(), file) != values.size()) {
    return ErrnoStatus(errno, fmt::format("write {} bytes to {}", values.size_bytes(), path));
  }
  return absl::OkStatus();
}

// Feeds `tokens` in batches and writes the logits that are asked for as they come.
absl::Status RunForward(compute::Model& model, std::span<const std::int32_t> tokens,
                        KvFormat format, const LogitsOptions& options, std::FILE* file) {
  const auto token_count = static_cast<std::int64_t>(tokens.size());
  compute::DenseAttention attention(model.config(), format, token_count, model.pool());
  std::vector<float> last(static_cast<std::size_t>(model.config().vocab_size));
  for (std::int64_t first = 0; first < token_count; first += kBatchTokens) {
    const std::int64_t count = std::min(kBatchTokens, token_count - first);
    compute::ForwardOutput output;
    if (options.all) {
      output.all_logits = [&](std::int64_t /*first_token*/, std::span<const float> logits) {
        return WriteFloats(file, options.output, logits);
      };
    } else if (first + count == token_count) {
      output.last_logits = last;
    }
    CAIRN_RETURN_IF_ERROR(model.Forward(
        tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first,
        attention, output, nullptr));
  }
  return options.all ? absl::OkStatus() : WriteFloats(file, options.output, last);
}

absl::Status Logits(const LogitsOptions& options) {
  if (!options.lora.empty()) {
    return Unimplemented(
        "--lora {}: LoRA adapters are not supported yet; merge the adapter into the model and give "
        "that file",
        options.lora);
  }
  const std::string inputs[] = {options.model, options.tokens};
  CAIRN_RETURN_IF_ERROR(CheckIsNoInput(options.output, inputs));
  const KvFormat format = ParseKvFormat(options.kv_format).value_or(KvFormat::kF16);
  std::vector<std::int32_t> tokens;
  CAIRN_ASSIGN_OR_RETURN(tokens, ReadTokens(options.tokens));
  std::unique_ptr<compute::Model> model;
  CAIRN_ASSIGN_OR_RETURN(model, LoadModel(options.model, options.threads));
  CAIRN_RETURN_IF_ERROR(CheckTokens(tokens, 0, options.tokens, model->config()));

  FileHandle file(std::fopen(options.output.c_str(), "wb"));
  if (file == nullptr) {
    return ErrnoStatus(errno, fmt::format("create {}", options.output));
  }
  absl::Status status = RunForward(*model, tokens, format, options, file.get());
  if (std::fclose(file.release()) != 0 && status.ok()) {
    status = ErrnoStatus(errno, fmt::format("close {}", options.output));
  }
  std::error_code ignored;
  if (!status.ok() && std::filesystem::is_regular_file(options.output, ignored)) {
    std::filesystem::remove(options.output, ignored);
  }
  return status;
}

void AddInspect(CLI::App& group, CommandResult& result) {
  CLI::App* command =
      group.add_subcommand("inspect",
                           "Print what a model file holds: its architecture, sizes, weight types "
                           "and tokenizer; whether\n"
                           "Cairn can run it, or all reasons why not; and what running it takes: "
                           "memory, flash, and the\n"
                           "speed that this machine's memory allows at most.");
  auto options = std::make_shared<InspectCommandOptions>();
  command->add_option("MODEL", options->model, "A model in GGUF format, or any part of a split one")
      ->required();
  command->add_flag("--no-probe", options->no_probe,
                    "Do not measure how fast memory is read, which takes up to 512 MiB of it for "
                    "some 0.3 s");
  command
      ->add_option("--threads", options->threads,
                   "Threads that measure it; 0: one for each processor")
      ->check(WholeNumber(0, kThreadsMax))
      ->capture_default_str();
  command->add_flag("--json", options->json, "As a JSON object, sizes in bytes");
  command->footer("example: cairn model inspect model.gguf --json --no-probe");
  SetAction(*command, result, [options] { return Inspect(*options); });
}

void AddTokenize(CLI::App& group, CommandResult& result) {
  CLI::App* command = group.add_subcommand(
      "tokenize",
      "Read a text from standard input and print the ids of its tokens, the pieces that the model\n"
      "works with, on one line.");
  command->footer("example: echo -n 'Hello, world' | cairn model tokenize model.gguf");
  auto path = std::make_shared<std::string>();
  auto special = std::make_shared<bool>(false);
  command->add_option("MODEL", *path, "A model, or only its vocabulary, in GGUF format")
      ->required();
  command->add_flag("--special", *special,
                    "Add the tokens that the model expects around a text, and take texts such as "
                    "<|im_end|> as the control tokens that they name");
  SetAction(*command, result, [path, special] { return Tokenize(*path, *special); });
}

void AddLogits(CLI::App& group, CommandResult& result) {
  CLI::App* command = group.add_subcommand(
      "logits",
      "Run a model over token ids and write its logits: one score for every token of the\n"
      "vocabulary, saying how likely it comes next. For comparing Cairn with other programs.");
  auto options = std::make_shared<LogitsOptions>();
  command->add_option("MODEL", options->model, "A model in GGUF format")->required();
  command
      ->add_option("TOKENS", options->tokens, "The token ids, each a little-endian int32 (4 bytes)")
      ->required();
  command
      ->add_option("OUT", options->output,
                   "File to write, replaced if it exists: little-endian float32, as many for a "
                   "position as the vocabulary has tokens")
      ->required();
  command->add_flag("--all", options->all,
                    "Write the logits of every position, in order, not only the last");
  command
      ->add_option("--kv-format", options->kv_format,
                   "How keys and values are kept, as the compute node's kv_format: f32, f16, q8 or "
                   "q4, each about half as large as the one before and less exact")
      ->check(CLI::IsMember({"f32", "f16", "q8", "q4"}))
      ->capture_default_str();
  command->add_option("--lora", options->lora, "LoRA adapter in GGUF format (not supported yet)");
  command->add_option("--lora-scale", options->lora_scale, "Strength of the adapter")
      ->capture_default_str();
  command
      ->add_option("--threads", options->threads,
                   "Threads that compute; 0: one for each processor. The result does not depend on "
                   "it")
      ->check(WholeNumber(0, kThreadsMax))
      ->capture_default_str();
  command->footer("example: cairn model logits model.gguf tokens.i32 logits.f32 --all");
  SetAction(*command, result, [options] { return Logits(*options); });
}

}  // namespace

void AddModelCommands(CLI::App& app, CommandResult& result) {
  CLI::App* group =
      app.add_subcommand("model", "Look at a model file and run it by itself, without any daemon");
  group->require_subcommand(1);
  group->footer("example: cairn model inspect model.gguf");
  AddInspect(*group, result);
  AddTokenize(*group, result);
  AddLogits(*group, result);
  AddModelTraceCommand(*group, result);
}

}  // namespace cairn::cli
