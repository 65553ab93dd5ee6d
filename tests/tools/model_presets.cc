#include "tests/tools/model_maker.h"

namespace cairn::test {
namespace {

constexpr ModelPreset kTinyLlama = {
    .name = "tiny-llama",
    .description = "Llama 2 style: SPM tokenizer, output matrix of its own",
    .architecture = "llama",
    .tokenizer = "spm",
    .layer_count = 2,
    .embedding_length = 256,
    .head_count = 8,
    .kv_head_count = 2,
    .head_dim = 32,
    .feed_forward_length = 512,
    .vocab_size = 512,
    .context_length = 2048,
    .rope_base = 10000.0F,
    .norm_epsilon = 1e-5F,
    .tied = false,
    .biased = false};

// A seventh of the weights, with the same keys and values.
constexpr ModelPreset Narrow(ModelPreset preset) {
  preset.name = "narrow-llama";
  preset.description = "tiny-llama with a seventh of its weights, for many tokens";
  preset.embedding_length = 64;
  preset.head_count = 4;
  preset.feed_forward_length = 128;
  return preset;
}

constexpr ModelPreset Biased(ModelPreset preset) {
  preset.name = "biased-llama";
  preset.description = "tiny-llama with a bias on every matrix of a layer";
  preset.biased = true;
  preset.biased_everywhere = true;
  return preset;
}

constexpr ModelPreset kTinyQwen2 = {
    .name = "tiny-qwen2",
    .description = "Qwen 2 style: biases, qwen2 tokenizer, tied embeddings",
    .architecture = "qwen2",
    .tokenizer = "qwen2",
    .layer_count = 2,
    .embedding_length = 256,
    .head_count = 4,
    .kv_head_count = 2,
    .head_dim = 64,
    .feed_forward_length = 512,
    .vocab_size = 576,
    .context_length = 4096,
    .rope_base = 1000000.0F,
    .norm_epsilon = 1e-6F,
    .tied = true,
    .biased = true};

constexpr ModelPreset Linear(ModelPreset preset) {
  preset.name = "linear-llama";
  preset.description = "tiny-llama with positions divided by 4";
  preset.rope_scaling = "linear";
  preset.rope_scaling_factor = 4;
  return preset;
}

constexpr ModelPreset Yarn(ModelPreset preset, std::string_view name) {
  preset.name = name;
  preset.description = "with YaRN, four times its original context";
  preset.rope_scaling = "yarn";
  preset.rope_scaling_factor = 4;
  preset.rope_original_context = preset.context_length / 4;
  return preset;
}

// With the keys that files mostly leave out.
constexpr ModelPreset TunedYarn(ModelPreset preset) {
  preset.rope_attention_factor = 0.75F;
  preset.rope_beta_fast = 16;
  return preset;
}

// Real shapes, for timing.
constexpr ModelPreset kQwenHalfB = {
    .name = "qwen2.5-0.5b",
    .description = "the shape of Qwen2.5-0.5B, 494 million weights, for timing",
    .architecture = "qwen2",
    .tokenizer = "qwen2",
    .layer_count = 24,
    .embedding_length = 896,
    .head_count = 14,
    .kv_head_count = 2,
    .head_dim = 64,
    .feed_forward_length = 4864,
    .vocab_size = 151936,
    .context_length = 32768,
    .rope_base = 1000000.0F,
    .norm_epsilon = 1e-6F,
    .tied = true,
    .biased = true};

constexpr ModelPreset QwenOneAndAHalfB(ModelPreset preset) {
  preset.name = "qwen2.5-1.5b";
  preset.description = "the shape of Qwen2.5-1.5B, 1.5 billion weights, for timing";
  preset.layer_count = 28;
  preset.embedding_length = 1536;
  preset.head_count = 12;
  preset.head_dim = 128;
  preset.feed_forward_length = 8960;
  return preset;
}

constexpr ModelPreset kLlamaOneB = {
    .name = "llama-3.2-1b",
    .description = "the shape of Llama-3.2-1B, 1.2 billion weights, for timing",
    .architecture = "llama",
    .tokenizer = "llama-bpe",
    .layer_count = 16,
    .embedding_length = 2048,
    .head_count = 32,
    .kv_head_count = 8,
    .head_dim = 64,
    .feed_forward_length = 8192,
    .vocab_size = 128256,
    .context_length = 131072,
    .rope_base = 500000.0F,
    .norm_epsilon = 1e-5F,
    .tied = true,
    .biased = false,
    .rope_factor = 32.0F,
    .rope_original_context = 8192};

constexpr ModelPreset LlamaThreeB(ModelPreset preset) {
  preset.name = "llama-3.2-3b";
  preset.description = "the shape of Llama-3.2-3B, 3.2 billion weights, for timing";
  preset.layer_count = 28;
  preset.embedding_length = 3072;
  preset.head_count = 24;
  preset.head_dim = 128;
  return preset;
}

constexpr ModelPreset kPresets[] = {
    kTinyLlama,
    Narrow(kTinyLlama),
    Biased(kTinyLlama),
    Linear(kTinyLlama),
    TunedYarn(Yarn(kTinyLlama, "yarn-llama")),
    kTinyQwen2,
    Yarn(kTinyQwen2, "yarn-qwen2"),
    {.name = "tiny-llama3",
     .description = "Llama 3 style: llama-bpe tokenizer, rope_freqs tensor, tied embeddings",
     .architecture = "llama",
     .tokenizer = "llama-bpe",
     .layer_count = 2,
     .embedding_length = 256,
     .head_count = 4,
     .kv_head_count = 1,
     .head_dim = 64,
     .feed_forward_length = 512,
     .vocab_size = 640,
     .context_length = 16384,
     .rope_base = 500000.0F,
     .norm_epsilon = 1e-5F,
     .tied = true,
     .biased = false,
     .rope_factor = 32.0F,
     .rope_original_context = 1024},
    {.name = "tiny-mistral",
     .description = "Mistral Nemo style: head size 128 although embedding / heads is 64",
     .architecture = "llama",
     .tokenizer = "spm",
     .layer_count = 2,
     .embedding_length = 256,
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 128,
     .feed_forward_length = 512,
     .vocab_size = 512,
     .context_length = 4096,
     .rope_base = 1000000.0F,
     .norm_epsilon = 1e-5F,
     .tied = false,
     .biased = false},
    {.name = "tiny-deep",
     .description = "small and quick with a context of 32768 tokens, for integration tests",
     .architecture = "llama",
     .tokenizer = "gpt-2",
     .layer_count = 4,
     .embedding_length = 128,
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 32,
     .feed_forward_length = 256,
     .vocab_size = 512,
     .context_length = 32768,
     .rope_base = 500000.0F,
     .norm_epsilon = 1e-5F,
     .tied = false,
     .biased = false},
    kQwenHalfB,
    QwenOneAndAHalfB(kQwenHalfB),
    kLlamaOneB,
    LlamaThreeB(kLlamaOneB),
};

}  // namespace

std::span<const ModelPreset> ModelPresets() { return kPresets; }

}  // namespace cairn::test
