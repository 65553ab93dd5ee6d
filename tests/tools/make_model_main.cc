// cairn-make-model: writes a GGUF model with random weights, for tests and timing.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "common/base/status.h"
#include "tests/tools/model_maker.h"

namespace {

void PrintPresets() {
  for (const cairn::test::ModelPreset& preset : cairn::test::ModelPresets()) {
    fmt::print(
        "{:<14} {}\n{:<14} {} layers, d {}, {}/{} heads of {}, ffn {}, vocab {}, context {}\n",
        preset.name, preset.description, "", preset.layer_count, preset.embedding_length,
        preset.head_count, preset.kv_head_count, preset.head_dim, preset.feed_forward_length,
        preset.vocab_size, preset.context_length);
  }
}

absl::Status WriteParts(const cairn::test::ModelOptions& options, const std::string& prefix,
                        int64_t part_count) {
  const auto model = cairn::test::MakeModel(options);
  if (!model.ok()) return model.status();
  std::vector<std::string> paths;
  return model->WriteParts(prefix, part_count, paths);
}

int Run(int argc, char** argv) {
  CLI::App app{"Write a complete GGUF model with random weights. Its text means nothing."};
  app.set_version_flag("--version", "cairn-make-model " CAIRN_VERSION);
  app.footer("example: cairn-make-model --preset tiny-llama --type q8_0 -o tiny.gguf");
  cairn::test::ModelOptions options;
  std::string output;
  int64_t parts = 1;
  bool list = false;
  app.add_option("--preset", options.preset, "Which model; --list names them");
  app.add_option("--type", options.type,
                 "Weight type: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, iq4_xs, "
                 "q2_k, q3_k, q4_k, q5_k, q6_k or q4_k_m")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the weights")->capture_default_str();
  app.add_option("--vocab-from", options.vocab_from,
                 "Copy the tokenizer of this GGUF file instead of building a small one");
  app.add_option("-o,--output", output, "The file to write");
  app.add_option("--parts", parts,
                 "Split into so many files, OUTPUT-00001-of-00003.gguf and so on, as OUTPUT names "
                 "what is before")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--list", list, "Print the presets and leave");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "cairn-make-model: {}; see --help\n", error.what());
    return 2;
  }
  if (list) {
    PrintPresets();
    return 0;
  }
  if (options.preset.empty() || output.empty()) {
    fmt::print(stderr, "cairn-make-model: give --preset and -o (or --list)\n");
    return 2;
  }
  const absl::Status status =
      parts > 1 ? WriteParts(options, output, parts) : cairn::test::WriteModel(options, output);
  if (!status.ok()) {
    fmt::print(stderr, "cairn-make-model: {}\n", cairn::Message(status));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairn-make-model: %s\n", error.what());
    return 1;
  }
}
