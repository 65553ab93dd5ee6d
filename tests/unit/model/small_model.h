// A llama model of a few thousand weights whose tensors a test may drop, bend or fuse.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/tools/gguf_writer.h"
#include "tests/tools/rng.h"

namespace cairn::compute {

class SmallModel {
 public:
  static constexpr std::int64_t kEmbedding = 32;
  static constexpr std::int64_t kFeedForward = 48;
  static constexpr std::int64_t kHeadDim = 8;
  static constexpr std::int64_t kQuery = 32;
  static constexpr std::int64_t kKv = 16;
  static constexpr std::int64_t kVocab = 37;

  SmallModel() {
    Add("token_embd.weight", {kEmbedding, kVocab});
    Add("output_norm.weight", {kEmbedding});
    Add("output.weight", {kEmbedding, kVocab});
    Add("blk.0.attn_norm.weight", {kEmbedding});
    Add("blk.0.attn_q.weight", {kEmbedding, kQuery});
    Add("blk.0.attn_k.weight", {kEmbedding, kKv});
    Add("blk.0.attn_v.weight", {kEmbedding, kKv});
    Add("blk.0.attn_output.weight", {kQuery, kEmbedding});
    Add("blk.0.ffn_norm.weight", {kEmbedding});
    Add("blk.0.ffn_gate.weight", {kEmbedding, kFeedForward});
    Add("blk.0.ffn_up.weight", {kEmbedding, kFeedForward});
    Add("blk.0.ffn_down.weight", {kFeedForward, kEmbedding});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes_) {
      names.push_back(name);
    }
    return names;
  }
  SmallModel& Without(const std::string& name) {
    shapes_.erase(name);
    return *this;
  }
  SmallModel& Misshapen(const std::string& name) {
    shapes_[name][0] += 8;
    return *this;
  }
  SmallModel& WithRopeFactor(float factor) {
    rope_factor_ = factor;
    Add("rope_freqs.weight", {kHeadDim / 2});
    return *this;
  }
  SmallModel& With(const std::string& name, std::vector<std::int64_t> shape) {
    Add(name, std::move(shape));
    return *this;
  }
  // Row and column of `name` hold `value`.
  SmallModel& Holding(float value, const std::string& name, std::int64_t row, std::size_t column) {
    held_[name] = {value, row, column};
    return *this;
  }
  // Puts attn_q, attn_k and attn_v in one tensor, whose rows are theirs one after the other.
  SmallModel& Fused() {
    Without("blk.0.attn_q.weight").Without("blk.0.attn_k.weight").Without("blk.0.attn_v.weight");
    Add("blk.0.attn_qkv.weight", {kEmbedding, kQuery + 2 * kKv});
    return *this;
  }

  // As many KV heads as query heads.
  SmallModel& Ungrouped() {
    kv_head_count_ = kQuery / kHeadDim;
    Add("blk.0.attn_k.weight", {kEmbedding, kQuery});
    Add("blk.0.attn_v.weight", {kEmbedding, kQuery});
    return *this;
  }

  absl::Status Write(const std::string& path) const {
    test::GgufWriter writer;
    writer.AddString("general.architecture", "llama");
    writer.AddU32("llama.block_count", 1);
    writer.AddU32("llama.context_length", 256);
    writer.AddU32("llama.embedding_length", kEmbedding);
    writer.AddU32("llama.feed_forward_length", kFeedForward);
    writer.AddU32("llama.attention.head_count", kQuery / kHeadDim);
    writer.AddU32("llama.attention.head_count_kv", kv_head_count_);
    writer.AddF32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    for (const auto& [name, shape] : shapes_) {
      writer.AddTensor(name, shape, test::TensorType::kF32,
                       [this, name = name](std::int64_t row, std::span<float> out) {
                         FillRow(name, row, out);
                         const auto held = held_.find(name);
                         if (held != held_.end() && held->second.row == row) {
                           out[held->second.column] = held->second.value;
                         }
                       });
    }
    return writer.WriteFile(path);
  }

 private:
  void Add(const std::string& name, std::vector<std::int64_t> shape) {
    shapes_[name] = std::move(shape);
  }

  void FillRow(const std::string& name, std::int64_t row, std::span<float> out) const {
    if (name == "rope_freqs.weight") {
      std::fill(out.begin(), out.end(), rope_factor_);
      return;
    }
    // A fused tensor's rows are those of the tensors that it stands for.
    std::string source = name;
    if (name == "blk.0.attn_qkv.weight") {
      source = row < kQuery         ? "blk.0.attn_q.weight"
               : row < kQuery + kKv ? "blk.0.attn_k.weight"
                                    : "blk.0.attn_v.weight";
      row -= row < kQuery ? 0 : row < kQuery + kKv ? kQuery : kQuery + kKv;
    }
    test::Rng rng(std::hash<std::string>()(source) + static_cast<std::uint64_t>(row));
    const bool norm = source.find("norm") != std::string::npos;
    for (float& value : out) {
      value = norm ? 1.0F + 0.1F * rng.Normal() : 0.2F * rng.Normal();
    }
  }

  struct Held {
    float value;
    std::int64_t row;
    std::size_t column;
  };

  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::map<std::string, Held> held_;
  std::uint32_t kv_head_count_ = kKv / kHeadDim;
  float rope_factor_ = 1.0F;
};

}  // namespace cairn::compute
