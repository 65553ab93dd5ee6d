// Fuzzes everything that reads a model file before any weight is used: the GGUF container, the
// model's configuration, its tokenizer, and the report about it. Whatever the bytes are, the answer
// must be a value or an error.
//   gguf_fuzz -max_total_time=60 CORPUS_FOLDER
// Small valid files that the tests' model maker writes are always in the corpus: libFuzzer would
// take very long to find a valid vocabulary by itself, so that mutations start from those.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/model/config.h"
#include "compute-node/model/forward/rope.h"
#include "compute-node/model/gguf/gguf.h"
#include "compute-node/model/inspect.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/tools/gguf_writer.h"
#include "tests/tools/tokenizer_maker.h"

// libFuzzer calls these by name.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned int seed);
// NOLINTEND(readability-identifier-naming)

namespace cairn::compute {
namespace {

constexpr std::string_view kTexts[] = {"", " ", "the path, the river\n\n 12345 <|eot_id|></s>",
                                       "\xff\xe2\x82 caf\u00e9 \u65e5\u672c"};

// A model without weights, small enough for many mutations a second.
std::string MakeSeed(std::string_view pre, bool with_tensors) {
  test::GgufWriter writer;
  const std::string architecture = pre == "qwen2" ? "qwen2" : "llama";
  writer.AddString("general.architecture", architecture);
  for (const char* key : {".block_count", ".attention.head_count", ".attention.head_count_kv"}) {
    writer.AddU32(architecture + key, 1);
  }
  writer.AddU32(architecture + ".context_length", 64);
  writer.AddU32(architecture + ".embedding_length", 16);
  writer.AddU32(architecture + ".feed_forward_length", 32);
  writer.AddU32(architecture + ".attention.key_length", 16);
  writer.AddF32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
  writer.AddF32(architecture + ".rope.freq_base", 10000.0F);
  if (pre == "qwen2") {
    writer.AddString(architecture + ".rope.scaling.type", "yarn");
    writer.AddF32(architecture + ".rope.scaling.factor", 4.0F);
    writer.AddU32(architecture + ".rope.scaling.original_context_length", 16);
    writer.AddF32(architecture + ".rope.scaling.yarn_beta_fast", 16.0F);
  }
  const test::Vocabulary vocabulary =
      pre == "spm" ? test::MakeSpmVocabulary(384) : test::MakeBpeVocabulary(300, pre);
  test::AddVocabulary(vocabulary, writer);
  const auto zero = [](std::int64_t, std::span<float> row) {
    std::fill(row.begin(), row.end(), 0.0F);
  };
  if (with_tensors) {
    writer.AddTensor("token_embd.weight", {16, static_cast<std::int64_t>(vocabulary.tokens.size())},
                     test::TensorType::kF32, zero);
    writer.AddTensor("output_norm.weight", {16}, test::TensorType::kF32, zero);
    writer.AddTensor("blk.0.attn_q.weight", {32, 16}, test::TensorType::kQ80, zero);
  }
  return writer.ToString();
}

const std::vector<std::string>& Seeds() {
  static const auto* seeds = new std::vector<std::string>{
      MakeSeed("spm", true),   MakeSeed("spm", false),   MakeSeed("llama-bpe", false),
      MakeSeed("qwen2", true), MakeSeed("gpt-2", false), MakeSeed("default", false)};
  return *seeds;
}

// Every seed must be a model's complete head, or the fuzzer would test little.
void CheckSeeds() {
  for (const std::string& seed : Seeds()) {
    const auto file = GgufFile::Parse(std::as_bytes(std::span(seed)));
    if (!file.ok() || !Tokenizer::FromGguf(**file).ok()) {
      std::abort();
    }
  }
}

// Ends the process for an id that the vocabulary lacks.
void CheckTokenizer(const Tokenizer& tokenizer) {
  for (const std::string_view text : kTexts) {
    for (const bool special : {false, true}) {
      const std::vector<std::int32_t> ids =
          tokenizer.Encode(text, {.add_special = special, .parse_special = special});
      for (const std::int32_t id : ids) {
        if (id < 0 || id >= tokenizer.vocab_size()) {
          std::abort();
        }
      }
      tokenizer.Decode(ids, special);
      StreamingDecoder decoder(tokenizer);
      for (const std::int32_t id : ids) {
        decoder.Append(id);
      }
      decoder.Finish();
    }
  }
}

// Ends the process for an angle that is no number: a configuration that is taken must have sense.
void CheckAngles(const ModelConfig& config) {
  const RotaryAngles angles = MakeRotaryAngles(config, {});
  for (const double frequency : angles.frequencies) {
    if (!std::isfinite(frequency) || frequency <= 0) {
      std::abort();
    }
  }
  if (!std::isfinite(angles.magnitude) || angles.magnitude <= 0) {
    std::abort();
  }
}

void ReadEverything(std::span<const std::byte> data) {
  const auto file = GgufFile::Parse(data);
  if (!file.ok()) {
    return;
  }
  const auto config = ReadModelConfig(**file);
  if (config.ok()) {
    CheckAngles(*config);
  }
  InspectModel(**file);
  for (const std::string_view key : (*file)->Keys()) {
    (*file)->FindUint(key);
    (*file)->FindFloat(key);
    (*file)->FindStringArray(key);
    (*file)->FindInt32Array(key);
    (*file)->FindFloatArray(key);
  }
  const auto tokenizer = Tokenizer::FromGguf(**file);
  if (tokenizer.ok()) {
    CheckTokenizer(**tokenizer);
  }
}

}  // namespace
}  // namespace cairn::compute

// libFuzzer's own limit on an input, 4096 bytes, is less than a vocabulary needs. A -max_len that
// the user gives counts.
int LLVMFuzzerInitialize(int* argc, char*** argv) {
  cairn::compute::CheckSeeds();
  static char max_length[] = "-max_len=65536";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, max_length);
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::compute::ReadEverything(std::as_bytes(std::span(data, size)));
  return 0;
}

// Now and then replaces the input by a seed, then mutates as libFuzzer does.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed) {
  const std::vector<std::string>& seeds = cairn::compute::Seeds();
  constexpr unsigned int kSeedEvery = 16;
  if (seed % kSeedEvery == 0) {
    const std::string& replacement = seeds[seed / kSeedEvery % seeds.size()];
    if (replacement.size() <= max_size) {
      std::copy(replacement.begin(), replacement.end(), data);
      size = replacement.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
