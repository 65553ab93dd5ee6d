// The models of the shared material and their expected logits.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace cairn::test {

struct SharedModel {
  const char* name;      // as in expected.json
  const char* make;      // arguments of make_gguf.py; null: the embedded model
  double tolerance_f16;  // of the logits with KV in f16, see the table of the shared material
  double tolerance_f32;  // with KV in f32; 0: not tested
};

inline constexpr SharedModel kSharedModels[] = {
    {"tiny-llama-f32", "--preset tiny-llama --type f32 --seed 19", 1e-3, 1e-4},
    {"tiny-llama-q8_0", "--preset tiny-llama --type q8_0 --seed 19", 3.2e-2, 0},
    {"tiny-llama-q4_0", "--preset tiny-llama --type q4_0 --seed 19", 3.2e-2, 0},
    {"tiny-llama-q6_k", "--preset tiny-llama --type q6_k --seed 19", 4e-2, 0},
    {"tiny-qwen2-f32", "--preset tiny-qwen2 --type f32 --seed 22", 1e-3, 1e-4},
    {"tiny-qwen2-f16", "--preset tiny-qwen2 --type f16 --seed 22", 3e-3, 0},
    {"tiny-qwen2-q8_0", "--preset tiny-qwen2 --type q8_0 --seed 22", 3.2e-2, 0},
    {"tiny-qwen2-q4_k", "--preset tiny-qwen2 --type q4_k --seed 22", 4.5e-2, 0},
    {"tiny-llama3-f32", "--preset tiny-llama3 --type f32 --seed 13", 1e-3, 1e-4},
    // Rounding keys and values to f16 moves the float64 reference itself by 1.8e-3 on the shorter
    // prompt: this model is trained, its attention is peaked, and the prompt is noise to it.
    {"retrieval-3m-f32", nullptr, 2e-3, 1e-4},
    {"retrieval-3m-f16", nullptr, 3e-3, 0},
};

inline void PrintTo(const SharedModel& model, std::ostream* out) { *out << model.name; }

// Path of the model's file, made when it is not there yet.
std::string SharedModelPath(const std::string& shared, const SharedModel& model);

// The float64 reference's logits of the last of `token_count` (64 or 1024) tokens of
// ReferencePrompt().
std::vector<double> SharedLogits(const std::string& shared, const SharedModel& model,
                                 int64_t token_count);

}  // namespace cairn::test
