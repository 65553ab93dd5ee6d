#include "tests/tools/reference_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>

#include "common/base/check.h"
#include "common/base/status.h"
#include "tests/tools/file_bytes.h"
#include "tests/tools/tensor_decoding.h"

namespace cairn::test {
namespace {

constexpr uint32_t kStringType = 8;
constexpr uint32_t kArrayType = 9;

// Reads little-endian fields one after another.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    CAIRN_CHECK_LE(sizeof(T), bytes_.size() - position_);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string TakeString() {
    const auto size = Take<uint64_t>();
    CAIRN_CHECK_LE(size, bytes_.size() - position_);
    position_ += size;
    return std::string(bytes_.substr(position_ - size, size));
  }

  ReferenceValue TakeValue(uint32_t type) {
    ReferenceValue value;
    value.type = type;
    const size_t begin = position_;
    if (type == kStringType) {
      value.text = TakeString();
    } else if (type == kArrayType) {
      const auto element_type = Take<uint32_t>();
      const auto count = Take<uint64_t>();
      for (uint64_t i = 0; i < count; ++i) {
        value.elements.push_back(TakeValue(element_type));
      }
    } else {
      value.number = TakeNumber(type);
    }
    value.raw = bytes_.substr(begin, position_ - begin);
    return value;
  }

  size_t position() const { return position_; }

 private:
  double TakeNumber(uint32_t type) {
    switch (type) {
      case 0:
      case 7:
        return Take<uint8_t>();
      case 1:
        return Take<int8_t>();
      case 2:
        return Take<uint16_t>();
      case 3:
        return Take<int16_t>();
      case 4:
        return Take<uint32_t>();
      case 5:
        return Take<int32_t>();
      case 6:
        return static_cast<double>(Take<float>());
      case 10:
        return static_cast<double>(Take<uint64_t>());
      case 11:
        return static_cast<double>(Take<int64_t>());
      case 12:
        return Take<double>();
      default:
        CAIRN_CHECK_EQ(type, 12U);
        return 0;
    }
  }

  std::string_view bytes_;
  size_t position_ = 0;
};

std::vector<double> Decode(const ReferenceTensor& tensor) {
  size_t count = 1;
  for (const int64_t dimension : tensor.shape) {
    count *= static_cast<size_t>(dimension);
  }
  std::vector<double> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = DecodedValue(static_cast<TensorType>(tensor.type), tensor.data, i);
  }
  return out;
}

// Four partial sums, so that the compiler may keep them in one register.
double Dot(const double* a, const double* b, size_t size) {
  double sum_0 = 0;
  double sum_1 = 0;
  double sum_2 = 0;
  double sum_3 = 0;
  size_t i = 0;
  for (; i + 4 <= size; i += 4) {
    sum_0 += a[i] * b[i];
    sum_1 += a[i + 1] * b[i + 1];
    sum_2 += a[i + 2] * b[i + 2];
    sum_3 += a[i + 3] * b[i + 3];
  }
  double sum = sum_0 + sum_1 + sum_2 + sum_3;
  for (; i < size; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// weight is [rows][x.size()]; an empty bias is none.
std::vector<double> Linear(const std::vector<double>& weight, const std::vector<double>& x,
                           const std::vector<double>& bias) {
  std::vector<double> y(weight.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    y[row] = Dot(weight.data() + row * x.size(), x.data(), x.size());
    if (!bias.empty()) {
      y[row] += bias[row];
    }
  }
  return y;
}

void AddTo(std::vector<double>& target, const std::vector<double>& addend) {
  for (size_t i = 0; i < target.size(); ++i) {
    target[i] += addend[i];
  }
}

double PairFrequency(double base, int64_t pair, int64_t head_dim) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
}

// Pairs up to `first` keep their frequency, from `last` on it is divided by the factor. Without
// YaRN every one's is.
struct YarnRange {
  double first = -1;
  double last = -1;
  double InterpolatedShare(int64_t pair) const {
    const auto at = static_cast<double>(pair);
    if (at <= first) return 0;
    return at >= last ? 1 : (at - first) / (last - first);
  }
};

// From the last pair that turns `fast` times over the original context to the first that turns no
// more than `slow` times.
YarnRange FindYarnRange(double base, int64_t head_dim, double original_context, double fast,
                        double slow) {
  const auto turns = [&](int64_t pair) {
    return original_context * PairFrequency(base, pair, head_dim) / (2 * std::acos(-1.0));
  };
  int64_t first = 0;
  while (turns(first + 1) >= fast) ++first;
  int64_t last = 0;
  while (turns(last) > slow && last < head_dim - 1) ++last;
  return {static_cast<double>(first), static_cast<double>(last)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceGguf>> ReadReferenceGguf(const std::string& path) {
  auto out = std::make_unique<ReferenceGguf>();
  out->bytes = BytesOfFile(path);
  if (out->bytes.empty()) return NotFound("cannot read {}", path);
  Cursor cursor(out->bytes);
  CAIRN_CHECK_EQ(cursor.Take<uint32_t>(), 0x46554747U);  // "GGUF"
  cursor.Take<uint32_t>();
  const auto tensor_count = cursor.Take<uint64_t>();
  const auto value_count = cursor.Take<uint64_t>();
  for (uint64_t i = 0; i < value_count; ++i) {
    const std::string key = cursor.TakeString();
    out->keys.push_back(key);
    out->values[key] = cursor.TakeValue(cursor.Take<uint32_t>());
  }
  std::map<std::string, uint64_t> offsets;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    const std::string name = cursor.TakeString();
    ReferenceTensor& tensor = out->tensors[name];
    const auto dimension_count = cursor.Take<uint32_t>();
    for (uint32_t d = 0; d < dimension_count; ++d) {
      tensor.shape.push_back(cursor.Take<int64_t>());
    }
    tensor.type = cursor.Take<uint32_t>();
    offsets[name] = cursor.Take<uint64_t>();
  }
  size_t alignment = 32;
  if (const auto it = out->values.find("general.alignment"); it != out->values.end()) {
    alignment = static_cast<size_t>(it->second.number);
  }
  const size_t data_begin = (cursor.position() + alignment - 1) / alignment * alignment;
  for (auto& [name, tensor] : out->tensors) {
    tensor.data = std::string_view(out->bytes).substr(data_begin + offsets[name]);
  }
  return out;
}

absl::StatusOr<ReferenceModel> ReferenceModel::Load(const std::string& path) {
  std::unique_ptr<ReferenceGguf> file;
  CAIRN_ASSIGN_OR_RETURN(file, ReadReferenceGguf(path));
  const std::string architecture = file->values.at("general.architecture").text;
  const auto number = [&](const std::string& key, std::optional<double> fallback) {
    const auto it = file->values.find(architecture + "." + key);
    CAIRN_CHECK(it != file->values.end() || fallback.has_value());
    return it != file->values.end() ? it->second.number : fallback.value_or(0);
  };
  const auto integer = [&](const std::string& key, std::optional<double> fallback) {
    return static_cast<int64_t>(number(key, fallback));
  };
  const auto tensor = [&](const std::string& name) {
    const auto it = file->tensors.find(name);
    return it == file->tensors.end() ? Vector() : Decode(it->second);
  };

  ReferenceModel model;
  model.rotate_halves_ = architecture == "qwen2";
  model.embedding_length_ = integer("embedding_length", {});
  model.head_count_ = integer("attention.head_count", {});
  model.kv_head_count_ = integer("attention.head_count_kv", static_cast<double>(model.head_count_));
  const int64_t default_head_dim = model.embedding_length_ / model.head_count_;
  model.head_dim_ = integer("attention.key_length", static_cast<double>(default_head_dim));
  model.norm_epsilon_ = number("attention.layer_norm_rms_epsilon", {});
  const double base = number("rope.freq_base", 10000.0);
  const double factor = number("rope.scaling.factor", 1.0);
  const auto scaling = file->values.find(architecture + ".rope.scaling.type");
  YarnRange range;
  model.rope_magnitude_ = number("rope.scaling.attn_factor", 1.0);
  if (scaling != file->values.end() && scaling->second.text == "yarn") {
    range = FindYarnRange(base, model.head_dim_, number("rope.scaling.original_context_length", {}),
                          number("rope.scaling.yarn_beta_fast", 32.0),
                          number("rope.scaling.yarn_beta_slow", 1.0));
    model.rope_magnitude_ *= 1 + std::log(factor) / 10;
  }
  const Vector divisors = tensor("rope_freqs.weight");
  for (int64_t i = 0; i < model.head_dim_ / 2; ++i) {
    const double divisor = divisors.empty() ? 1.0 : divisors[static_cast<size_t>(i)];
    const double share = range.InterpolatedShare(i);
    model.rope_frequencies_.push_back(PairFrequency(base, i, model.head_dim_) *
                                      (1 - share + share / factor) / divisor);
  }
  model.token_embedding_ = tensor("token_embd.weight");
  model.vocab_size_ = static_cast<int64_t>(model.token_embedding_.size()) / model.embedding_length_;
  model.output_ = tensor("output.weight");
  model.output_norm_ = tensor("output_norm.weight");
  for (int64_t i = 0; i < integer("block_count", {}); ++i) {
    const std::string block = fmt::format("blk.{}.", i);
    Layer& layer = model.layers_.emplace_back();
    const auto load = [&](const std::string& name, Vector& weight, Vector* bias) {
      weight = tensor(block + name + ".weight");
      if (bias != nullptr) *bias = tensor(block + name + ".bias");
    };
    load("attn_norm", layer.attn_norm, nullptr);
    load("attn_q", layer.q, &layer.q_bias);
    load("attn_k", layer.k, &layer.k_bias);
    load("attn_v", layer.v, &layer.v_bias);
    load("attn_output", layer.attn_output, &layer.attn_output_bias);
    load("ffn_norm", layer.ffn_norm, nullptr);
    load("ffn_gate", layer.gate, &layer.gate_bias);
    load("ffn_up", layer.up, &layer.up_bias);
    load("ffn_down", layer.down, &layer.down_bias);
  }
  return model;
}

ReferenceModel::Vector ReferenceModel::Normalise(const Vector& x, const Vector& weight) const {
  const double mean_square = Dot(x.data(), x.data(), x.size()) / static_cast<double>(x.size());
  const double inverse = 1.0 / std::sqrt(mean_square + norm_epsilon_);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] * inverse * weight[i];
  }
  return y;
}

void ReferenceModel::Rotate(std::span<double> heads, int64_t position) const {
  const auto dim = static_cast<size_t>(head_dim_);
  for (size_t head = 0; head < heads.size(); head += dim) {
    for (size_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(position) * rope_frequencies_[i];
      double& a = heads[head + (rotate_halves_ ? i : 2 * i)];
      double& b = heads[head + (rotate_halves_ ? i + dim / 2 : 2 * i + 1)];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = rope_magnitude_ * (a * std::sin(angle) + b * std::cos(angle));
      a = rope_magnitude_ * rotated;
    }
  }
}

void ReferenceModel::AttendLayer(const Layer& layer, std::vector<Vector>& states) const {
  const auto dim = static_cast<size_t>(head_dim_);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  std::vector<Vector> keys;
  std::vector<Vector> values;
  for (size_t position = 0; position < states.size(); ++position) {
    const Vector x = Normalise(states[position], layer.attn_norm);
    Vector query = Linear(layer.q, x, layer.q_bias);
    keys.push_back(Linear(layer.k, x, layer.k_bias));
    values.push_back(Linear(layer.v, x, layer.v_bias));
    Rotate(query, static_cast<int64_t>(position));
    Rotate(keys.back(), static_cast<int64_t>(position));

    Vector attended(query.size(), 0.0);
    for (int64_t head = 0; head < head_count_; ++head) {
      const size_t q_begin = static_cast<size_t>(head) * dim;
      const size_t kv_begin = static_cast<size_t>(head * kv_head_count_ / head_count_) * dim;
      Vector weights(position + 1);
      for (size_t past = 0; past <= position; ++past) {
        weights[past] = scale * Dot(query.data() + q_begin, keys[past].data() + kv_begin, dim);
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      for (double& weight : weights) {
        weight = std::exp(weight - largest);
        total += weight;
      }
      for (size_t past = 0; past <= position; ++past) {
        for (size_t i = 0; i < dim; ++i) {
          attended[q_begin + i] += weights[past] / total * values[past][kv_begin + i];
        }
      }
    }
    AddTo(states[position], Linear(layer.attn_output, attended, layer.attn_output_bias));
  }
}

void ReferenceModel::FeedForwardLayer(const Layer& layer, std::vector<Vector>& states) const {
  for (Vector& state : states) {
    const Vector x = Normalise(state, layer.ffn_norm);
    Vector gate = Linear(layer.gate, x, layer.gate_bias);
    const Vector up = Linear(layer.up, x, layer.up_bias);
    for (size_t i = 0; i < gate.size(); ++i) {
      gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    }
    AddTo(state, Linear(layer.down, gate, layer.down_bias));
  }
}

std::vector<double> ReferenceModel::Logits(std::span<const int32_t> tokens,
                                           int64_t first_position) const {
  const auto dim = static_cast<size_t>(embedding_length_);
  std::vector<Vector> states;
  for (const int32_t token : tokens) {
    CAIRN_CHECK(token >= 0 && token < vocab_size_);
    const double* row = token_embedding_.data() + static_cast<size_t>(token) * dim;
    states.emplace_back(row, row + dim);
  }
  for (const Layer& layer : layers_) {
    AttendLayer(layer, states);
    FeedForwardLayer(layer, states);
  }
  Vector logits;
  for (auto position = static_cast<size_t>(first_position); position < states.size(); ++position) {
    const Vector row = Linear(output_.empty() ? token_embedding_ : output_,
                              Normalise(states[position], output_norm_), {});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

double RelativeDistance(std::span<const float> a, std::span<const double> b) {
  CAIRN_CHECK_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(a[i]) - b[i];
    difference += delta * delta;
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<int32_t> ReferencePrompt(int64_t token_count, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  uint64_t x = 12345;
  for (int64_t i = 0; i < token_count; ++i) {
    x = (x * 1103515245 + 12345) & 0x7fffffff;
    tokens.push_back(static_cast<int32_t>(3 + (x >> 8) % static_cast<uint64_t>(vocab_size - 3)));
  }
  return tokens;
}

}  // namespace cairn::test
