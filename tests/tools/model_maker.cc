#include "tests/tools/model_maker.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "tests/tools/reference_forward.h"
#include "tests/tools/rng.h"
#include "tests/tools/tokenizer_maker.h"

namespace cairn::test {
namespace {

uint32_t Unsigned(int32_t value) { return static_cast<uint32_t>(value); }

// Which type each matrix of a file has.
struct TypeMix {
  TensorType type = TensorType::kF32;
  // token_embd and output in Q6_K, as in the files that users have.
  bool fine_embedding = false;
  // As Q4_K_M: the output matrix, attn_v and ffn_down of about half of the layers in Q6_K.
  bool medium = false;
};

absl::StatusOr<TypeMix> TypeMixFromName(std::string_view name) {
  if (name == "q4_k_m") return TypeMix{.type = TensorType::kQ4K, .medium = true};
  TypeMix mix;
  CAIRN_ASSIGN_OR_RETURN(mix.type, TensorTypeFromName(name));
  mix.fine_embedding = mix.type == TensorType::kQ40;
  return mix;
}

// The first and last eighth of the layers and every third of the others.
bool IsFinerLayer(int32_t layer, int32_t layer_count) {
  const int32_t eighth = layer_count / 8;
  return layer < eighth || layer >= 7 * layer_count / 8 || (layer - eighth) % 3 == 2;
}

// What a matrix is stored as whose rows are no whole number of blocks.
TensorType NarrowerType(TensorType type, int32_t columns) {
  if (columns % 32 != 0) return TensorType::kF16;
  switch (type) {
    case TensorType::kQ2K:
    case TensorType::kQ3K:
    case TensorType::kIq4Xs:
      return TensorType::kIq4Nl;
    case TensorType::kQ4K:
      return TensorType::kQ50;
    case TensorType::kQ5K:
      return TensorType::kQ51;
    default:
      return TensorType::kQ80;
  }
}

uint32_t FileTypeNumber(const TypeMix& mix) {
  switch (mix.type) {
    case TensorType::kF32:
      return 0;
    case TensorType::kF16:
      return 1;
    case TensorType::kQ40:
      return 2;
    case TensorType::kQ41:
      return 3;
    case TensorType::kQ80:
      return 7;
    case TensorType::kQ50:
      return 8;
    case TensorType::kQ51:
      return 9;
    case TensorType::kQ2K:
      return 10;
    case TensorType::kQ3K:
      return 11;
    case TensorType::kQ4K:
      return mix.medium ? 15 : 14;
    case TensorType::kQ5K:
      return 16;
    case TensorType::kQ6K:
      return 18;
    case TensorType::kIq4Nl:
      return 25;
    case TensorType::kIq4Xs:
      return 30;
    case TensorType::kBf16:
      return 32;
  }
  return 0;
}

void AddRopeScaling(const ModelPreset& preset, const std::string& prefix, GgufWriter& writer) {
  if (preset.rope_scaling.empty()) return;
  writer.AddString(prefix + "rope.scaling.type", preset.rope_scaling);
  writer.AddF32(prefix + "rope.scaling.factor", preset.rope_scaling_factor);
  if (preset.rope_original_context > 0) {
    writer.AddU32(prefix + "rope.scaling.original_context_length",
                  Unsigned(preset.rope_original_context));
  }
  if (preset.rope_attention_factor > 0) {
    writer.AddF32(prefix + "rope.scaling.attn_factor", preset.rope_attention_factor);
  }
  if (preset.rope_beta_fast > 0) {
    writer.AddF32(prefix + "rope.scaling.yarn_beta_fast", preset.rope_beta_fast);
  }
}

void AddModelKeys(const ModelPreset& preset, const TypeMix& mix, uint64_t seed, int32_t vocab_size,
                  GgufWriter& writer) {
  const std::string prefix = std::string(preset.architecture) + ".";
  writer.AddString("general.architecture", preset.architecture);
  writer.AddString("general.type", "model");
  writer.AddString("general.name", fmt::format("{}-random-{}", preset.name, seed));
  writer.AddU32("general.file_type", FileTypeNumber(mix));
  writer.AddU32("general.quantization_version", 2);
  writer.AddU32("general.alignment", 32);
  writer.AddU32(prefix + "block_count", Unsigned(preset.layer_count));
  writer.AddU32(prefix + "context_length", Unsigned(preset.context_length));
  writer.AddU32(prefix + "embedding_length", Unsigned(preset.embedding_length));
  writer.AddU32(prefix + "feed_forward_length", Unsigned(preset.feed_forward_length));
  writer.AddU32(prefix + "attention.head_count", Unsigned(preset.head_count));
  writer.AddU32(prefix + "attention.head_count_kv", Unsigned(preset.kv_head_count));
  writer.AddU32(prefix + "attention.key_length", Unsigned(preset.head_dim));
  writer.AddU32(prefix + "attention.value_length", Unsigned(preset.head_dim));
  writer.AddF32(prefix + "attention.layer_norm_rms_epsilon", preset.norm_epsilon);
  writer.AddU32(prefix + "rope.dimension_count", Unsigned(preset.head_dim));
  writer.AddF32(prefix + "rope.freq_base", preset.rope_base);
  writer.AddU32(prefix + "vocab_size", Unsigned(vocab_size));
  AddRopeScaling(preset, prefix, writer);
}

// Copies the tokenizer of another file. Returns the number of its tokens.
absl::StatusOr<int32_t> CopyVocabulary(const std::string& path, int32_t vocab_size,
                                       GgufWriter& writer) {
  std::unique_ptr<ReferenceGguf> file;
  CAIRN_ASSIGN_OR_RETURN(file, ReadReferenceGguf(path));
  const auto model = file->values.find("tokenizer.ggml.model");
  const auto tokens = file->values.find("tokenizer.ggml.tokens");
  const auto kinds = file->values.find("tokenizer.ggml.token_type");
  if (model == file->values.end() || tokens == file->values.end() || kinds == file->values.end()) {
    return InvalidArgument("{} holds no tokenizer to copy", path);
  }
  Vocabulary copy;
  copy.model = model->second.text;
  for (size_t i = 0; i < tokens->second.elements.size(); ++i) {
    copy.tokens.push_back(tokens->second.elements[i].text);
    copy.kinds.push_back(static_cast<int32_t>(kinds->second.elements.at(i).number));
  }
  if (const auto scores = file->values.find("tokenizer.ggml.scores");
      scores != file->values.end()) {
    for (const ReferenceValue& score : scores->second.elements) {
      copy.scores.push_back(static_cast<float>(score.number));
    }
  }
  const int32_t token_count = std::max(vocab_size, static_cast<int32_t>(copy.tokens.size()));
  PadVocabulary(copy, token_count);
  for (const std::string& key : file->keys) {
    const ReferenceValue& value = file->values.at(key);
    if (key == "tokenizer.ggml.tokens") {
      writer.AddStringArray(key, copy.tokens);
    } else if (key == "tokenizer.ggml.token_type") {
      writer.AddI32Array(key, copy.kinds);
    } else if (key == "tokenizer.ggml.scores") {
      writer.AddF32Array(key, copy.scores);
    } else if (key.starts_with("tokenizer.")) {
      writer.AddRaw(key, value.type, value.raw);
    }
  }
  return token_count;
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

// Adds the tensors of a model one after another.
class TensorMaker {
 public:
  TensorMaker(const TypeMix& mix, uint64_t seed, GgufWriter& writer)
      : mix_(mix), seed_(seed), writer_(writer) {}

  const TypeMix& mix() const { return mix_; }

  // [rows][columns] of normal values; `finer` ones are Q6_K.
  void Matrix(const std::string& name, int32_t columns, int32_t rows, double deviation,
              bool finer = false) {
    TensorType type = finer ? TensorType::kQ6K : mix_.type;
    if (columns % InfoOf(type).block_values != 0) type = NarrowerType(type, columns);
    Add(name, {columns, rows}, type, 0.0F, static_cast<float>(deviation));
  }

  void NormWeight(const std::string& name, int32_t size) {
    Add(name, {size}, TensorType::kF32, 1.0F, 0.1F);
  }

  void Bias(const std::string& name, int32_t size, float deviation) {
    Add(name, {size}, TensorType::kF32, 0.0F, deviation);
  }

  // The divisors of the rotary frequencies as Llama 3.1 defines them, low and high frequency
  // factors 1 and 4.
  void RopeDivisors(const ModelPreset& preset) {
    const double original = preset.rope_original_context;
    std::vector<float> divisors;
    for (int i = 0; i < preset.head_dim; i += 2) {
      const double wavelength =
          2 * std::numbers::pi *
          std::pow(static_cast<double>(preset.rope_base), static_cast<double>(i) / preset.head_dim);
      const auto factor = static_cast<double>(preset.rope_factor);
      double divisor = factor;
      if (wavelength < original / 4) {
        divisor = 1;
      } else if (wavelength <= original) {
        const double smooth = (original / wavelength - 1) / 3;
        divisor = 1 / ((1 - smooth) / factor + smooth);
      }
      divisors.push_back(static_cast<float>(divisor));
    }
    writer_.AddTensor("rope_freqs.weight", {preset.head_dim / 2}, TensorType::kF32,
                      [divisors](int64_t, std::span<float> values) {
                        std::copy(divisors.begin(), divisors.end(), values.begin());
                      });
  }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, TensorType type, float mean,
           float deviation) {
    const uint64_t tensor_seed = seed_ * 0x9e3779b97f4a7c15ULL + HashName(name);
    writer_.AddTensor(name, std::move(shape), type, [=](int64_t row, std::span<float> values) {
      Rng rng(tensor_seed ^ (static_cast<uint64_t>(row) << 20));
      for (float& value : values) {
        value = mean + deviation * rng.Normal();
      }
    });
  }

  TypeMix mix_;
  uint64_t seed_;
  GgufWriter& writer_;
};

// Deviations keep activations and logits near 1 and greedy output varied.
void AddTensors(const ModelPreset& preset, int32_t vocab_size, TensorMaker& maker) {
  const int32_t d = preset.embedding_length;
  const int32_t q_size = preset.head_count * preset.head_dim;
  const int32_t kv_size = preset.kv_head_count * preset.head_dim;
  const int32_t ffn = preset.feed_forward_length;
  const double d_scale = 1 / std::sqrt(static_cast<double>(d));
  const TypeMix& mix = maker.mix();
  maker.Matrix("token_embd.weight", d, vocab_size, preset.tied ? d_scale : 1.0,
               mix.fine_embedding || (mix.medium && preset.tied));
  if (preset.rope_factor > 0) {
    maker.RopeDivisors(preset);
  }
  for (int32_t layer = 0; layer < preset.layer_count; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    const bool finer = mix.medium && IsFinerLayer(layer, preset.layer_count);
    maker.NormWeight(block + "attn_norm.weight", d);
    maker.Matrix(block + "attn_q.weight", d, q_size, d_scale);
    maker.Matrix(block + "attn_k.weight", d, kv_size, d_scale);
    maker.Matrix(block + "attn_v.weight", d, kv_size, d_scale, finer);
    maker.Matrix(block + "attn_output.weight", q_size, d, 1 / std::sqrt(q_size));
    if (preset.biased) {
      maker.Bias(block + "attn_q.bias", q_size, 0.5F);
      maker.Bias(block + "attn_k.bias", kv_size, 0.5F);
      maker.Bias(block + "attn_v.bias", kv_size, 0.1F);
    }
    if (preset.biased_everywhere) {
      maker.Bias(block + "attn_output.bias", d, 0.5F);
      maker.Bias(block + "ffn_gate.bias", ffn, 0.5F);
      maker.Bias(block + "ffn_up.bias", ffn, 0.5F);
      maker.Bias(block + "ffn_down.bias", d, 0.5F);
    }
    maker.NormWeight(block + "ffn_norm.weight", d);
    maker.Matrix(block + "ffn_gate.weight", d, ffn, d_scale);
    maker.Matrix(block + "ffn_up.weight", d, ffn, d_scale);
    maker.Matrix(block + "ffn_down.weight", ffn, d, 1.5 / std::sqrt(ffn), finer);
  }
  maker.NormWeight("output_norm.weight", d);
  if (!preset.tied) {
    maker.Matrix("output.weight", d, vocab_size, 2 * d_scale, mix.fine_embedding || mix.medium);
  }
}

}  // namespace

absl::StatusOr<GgufWriter> MakeModel(const ModelOptions& options) {
  const ModelPreset* preset = nullptr;
  for (const ModelPreset& candidate : ModelPresets()) {
    if (candidate.name == options.preset) {
      preset = &candidate;
    }
  }
  if (preset == nullptr) {
    return InvalidArgument("unknown preset '{}': --list names them", options.preset);
  }
  TypeMix mix;
  CAIRN_ASSIGN_OR_RETURN(mix, TypeMixFromName(options.type));

  // The tokenizer comes first: a copied vocabulary decides the size of the model's.
  int32_t vocab_size = preset->vocab_size;
  GgufWriter writer;
  if (options.vocab_from.empty()) {
    constexpr int32_t kLearnedTokensMax = 1024;
    const int32_t learned = std::min(vocab_size, kLearnedTokensMax);
    Vocabulary vocabulary = preset->tokenizer == "spm"
                                ? MakeSpmVocabulary(learned)
                                : MakeBpeVocabulary(learned, preset->tokenizer);
    PadVocabulary(vocabulary, vocab_size);
    AddVocabulary(vocabulary, writer);
  } else {
    CAIRN_ASSIGN_OR_RETURN(vocab_size, CopyVocabulary(options.vocab_from, vocab_size, writer));
  }
  AddModelKeys(*preset, mix, options.seed, vocab_size, writer);
  TensorMaker maker(mix, options.seed, writer);
  AddTensors(*preset, vocab_size, maker);
  return writer;
}

absl::Status WriteModel(const ModelOptions& options, const std::string& path) {
  GgufWriter writer;
  CAIRN_ASSIGN_OR_RETURN(writer, MakeModel(options));
  return writer.WriteFile(path);
}

}  // namespace cairn::test
