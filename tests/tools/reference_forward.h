// The reference that Cairn's forward pass is tested against: a plain llama/qwen2 forward pass in
// float64 with its own GGUF reader, written to be read. Weights are decoded exactly
// (tensor_decoding.h); nothing is rounded afterwards, so its logits are those of an engine without
// arithmetic error. Shares no code with compute-node. It trusts its files (tests write
// them): malformed input ends the process through CAIRN_CHECK.
//
// Threading:  a ReferenceModel is immutable; safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace cairn::test {

// One metadata value: the number when it is a number or bool, the text when a string, elements when
// an array; `raw` is its encoding in the file (without the type number).
struct ReferenceValue {
  uint32_t type = 0;
  double number = 0;
  std::string text;
  std::vector<ReferenceValue> elements;
  std::string_view raw;
};

struct ReferenceTensor {
  std::vector<int64_t> shape;  // innermost first
  uint32_t type = 0;
  std::string_view data;  // from the tensor's first byte to the end of the file
};

// Not movable: values and tensors point into `bytes`.
struct ReferenceGguf {
  ReferenceGguf() = default;
  ~ReferenceGguf() = default;
  ReferenceGguf(const ReferenceGguf&) = delete;
  ReferenceGguf& operator=(const ReferenceGguf&) = delete;

  std::string bytes;
  std::vector<std::string> keys;  // in file order
  std::map<std::string, ReferenceValue> values;
  std::map<std::string, ReferenceTensor> tensors;
};

// NOT_FOUND when `path` cannot be read.
absl::StatusOr<std::unique_ptr<ReferenceGguf>> ReadReferenceGguf(const std::string& path);

class ReferenceModel {
 public:
  static absl::StatusOr<ReferenceModel> Load(const std::string& path);

  // Logits of positions first_position.. of `tokens`, row-major [position][vocab_size].
  std::vector<double> Logits(std::span<const int32_t> tokens, int64_t first_position) const;

  int64_t vocab_size() const { return vocab_size_; }

 private:
  using Vector = std::vector<double>;
  struct Layer {
    Vector attn_norm, q, k, v, q_bias, k_bias, v_bias, attn_output, attn_output_bias;
    Vector ffn_norm, gate, up, down, gate_bias, up_bias, down_bias;
  };

  void AttendLayer(const Layer& layer, std::vector<Vector>& states) const;
  void FeedForwardLayer(const Layer& layer, std::vector<Vector>& states) const;
  void Rotate(std::span<double> heads, int64_t position) const;
  Vector Normalise(const Vector& x, const Vector& weight) const;

  bool rotate_halves_ = false;  // pairs (i, i + head_dim/2) instead of (2i, 2i + 1)
  int64_t embedding_length_ = 0;
  int64_t head_count_ = 0;
  int64_t kv_head_count_ = 0;
  int64_t head_dim_ = 0;
  int64_t vocab_size_ = 0;
  double norm_epsilon_ = 0;
  Vector rope_frequencies_;    // head_dim / 2, radians a position
  double rope_magnitude_ = 1;  // of sines and cosines
  Vector token_embedding_;
  Vector output_;  // empty: tied to token_embedding_
  Vector output_norm_;
  std::vector<Layer> layers_;
};

// Relative L2 distance |a - b| / |b|, the measure of the tolerance table.
double RelativeDistance(std::span<const float> a, std::span<const double> b);

// The prompt of the reference data: ids from a fixed linear congruential generator, all
// in 3..vocab_size-1.
std::vector<int32_t> ReferencePrompt(int64_t token_count, int64_t vocab_size);

}  // namespace cairn::test
