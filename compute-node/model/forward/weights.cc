#include "compute-node/model/forward/weights.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "compute-node/model/forward/finite_check.h"
#include "compute-node/model/forward/query_sums.h"
#include "compute-node/model/forward/weights_packer.h"

namespace cairn::compute {
namespace {

struct Computable {
  GgufTensorType stored;
  WeightType type;
};
constexpr Computable kComputableTypes[] = {
    {GgufTensorType::kF32, WeightType::kF32},     {GgufTensorType::kF16, WeightType::kF16},
    {GgufTensorType::kBF16, WeightType::kBF16},   {GgufTensorType::kQ80, WeightType::kQ80},
    {GgufTensorType::kQ40, WeightType::kQ40},     {GgufTensorType::kQ41, WeightType::kQ41},
    {GgufTensorType::kQ50, WeightType::kQ50},     {GgufTensorType::kQ51, WeightType::kQ51},
    {GgufTensorType::kIq4Nl, WeightType::kIq4Nl}, {GgufTensorType::kIq4Xs, WeightType::kIq4Xs},
    {GgufTensorType::kQ2K, WeightType::kQ2K},     {GgufTensorType::kQ3K, WeightType::kQ3K},
    {GgufTensorType::kQ4K, WeightType::kQ4K},     {GgufTensorType::kQ5K, WeightType::kQ5K},
    {GgufTensorType::kQ6K, WeightType::kQ6K},
};

std::string Shape(const GgufTensor& tensor) {
  std::string text;
  for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) {
    text += fmt::format("{}{}", text.empty() ? "" : " x ", *dim);
  }
  return text;
}

// Whether a model of `layer_count` layers computes with a tensor of this name.
bool IsModelTensor(std::string_view name, std::int64_t layer_count) {
  constexpr std::string_view kModelNames[] = {"token_embd.weight", "output_norm.weight",
                                              "output.weight", "rope_freqs.weight"};
  constexpr std::string_view kMatrices[] = {"attn_q",      "attn_k",   "attn_v", "attn_qkv",
                                            "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
  const auto is = [&](std::string_view other) { return name == other; };
  if (std::any_of(std::begin(kModelNames), std::end(kModelNames), is)) return true;
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return false;
  name.remove_prefix(kBlock.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || layer >= layer_count) return false;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  if (name == ".attn_norm.weight" || name == ".ffn_norm.weight") return true;
  return std::any_of(std::begin(kMatrices), std::end(kMatrices), [&](std::string_view matrix) {
    return name == fmt::format(".{}.weight", matrix) || name == fmt::format(".{}.bias", matrix);
  });
}

}  // namespace

absl::StatusOr<WeightType> ComputableType(const GgufTensor& tensor) {
  const auto* found = std::ranges::find(kComputableTypes, tensor.type, &Computable::stored);
  if (found != std::end(kComputableTypes)) return found->type;
  return Unimplemented(
      "tensor '{}' is of type {}; Cairn computes with {}: convert the model to one of them",
      PrintableText(tensor.name), GgufTensorTypeName(tensor.type), kWeightTypeNames);
}

class WeightsLoader {
 public:
  WeightsLoader(const GgufFile& file, const ModelConfig& config, Weights& weights)
      : file_(file), config_(config), weights_(weights) {}

  WeightsSurvey Survey() {
    WeightsSurvey survey;
    problems_ = &survey.problems;
    const absl::Status status = Plan();
    CAIRN_CHECK(status.ok());  // all went to the problems
    survey.packed_bytes = PackedTotal(tasks_);
    survey.decode_bytes = survey.packed_bytes;
    for (const PackTask& task : tasks_) {
      if (task.sums) survey.decode_bytes -= task.packed_bytes();
    }
    return survey;
  }

  // Finds and checks every tensor; reads the vectors.
  absl::Status Plan() {
    weights_.layers_.resize(static_cast<std::size_t>(config_.layer_count));
    for (std::int64_t i = 0; i < config_.layer_count; ++i) {
      CAIRN_RETURN_IF_ERROR(PlanLayer(i));
    }
    CAIRN_RETURN_IF_ERROR(PlanEnds());
    for (const GgufTensor& tensor : file_.tensors()) {
      if (IsModelTensor(tensor.name, config_.layer_count)) continue;
      CAIRN_RETURN_IF_ERROR(Refuse(Unimplemented(
          "tensor '{}' is not part of a {} model as Cairn knows it; without it the answers would "
          "be wrong",
          PrintableText(tensor.name), config_.architecture)));
    }
    return absl::OkStatus();
  }

  absl::Status Load(ThreadPool& pool, const PackedCache& cache, const PackProgress& progress) {
    CAIRN_RETURN_IF_ERROR(Plan());
    const bool tied = file_.FindTensor("output.weight") == nullptr;
    WeightsPacker packer(file_, tasks_, pool, progress);
    if (!tied) packer.CheckToo(*weights_.embedding_, weights_.embedding_type_);
    CAIRN_ASSIGN_OR_RETURN(weights_.packed_, packer.Load(cache));
    PointAt(weights_.packed_.data());
    if (config_.group_size() == 1) {
      for (LayerWeights& layer : weights_.layers_) layer.query_sum = layer.query;
    }
    return absl::OkStatus();
  }

 private:
  // An error ends loading; a survey goes on and keeps it.
  absl::Status Refuse(absl::Status status) {
    if (problems_ == nullptr) return status;
    problems_->push_back(std::move(status));
    return absl::OkStatus();
  }

  absl::Status RefuseType(const GgufTensor& tensor, absl::Status status) {
    const bool again = !refused_types_.insert(tensor.type).second;
    return problems_ != nullptr && again ? absl::OkStatus() : Refuse(std::move(status));
  }

  absl::Status RefuseMissing(const std::string& name) {
    return Refuse(InvalidArgument("tensor '{}' is missing; the file is no complete {} model", name,
                                  config_.architecture));
  }

  absl::Status PlanMatrix(const std::string& name, std::int64_t row_count,
                          std::int64_t column_count, PackedMatrix& target) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return RefuseMissing(name);
    return PlanRows(*tensor, row_count, 0, row_count, column_count, target);
  }

  // Rows [first_row, first_row + row_count) of a tensor that must have `tensor_row_count` rows.
  absl::Status PlanRows(const GgufTensor& tensor, std::int64_t tensor_row_count,
                        std::int64_t first_row, std::int64_t row_count, std::int64_t column_count,
                        PackedMatrix& target) {
    if (tensor.dims.size() != 2 || tensor.dims[0] != column_count ||
        tensor.dims[1] != tensor_row_count) {
      return Refuse(InvalidArgument("tensor '{}' has shape {}, the model's metadata needs {} x {}",
                                    tensor.name, Shape(tensor), tensor_row_count, column_count));
    }
    const absl::StatusOr<WeightType> type = ComputableType(tensor);
    if (!type.ok()) return RefuseType(tensor, type.status());
    tasks_.push_back({&tensor, *type, first_row, row_count, &target});
    return absl::OkStatus();
  }

  // A vector of `count` floats, of any float type.
  absl::Status ReadVector(const std::string& name, std::int64_t count, bool required,
                          std::vector<float>& out) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return required ? RefuseMissing(name) : absl::OkStatus();
    }
    if (tensor->value_count != count || tensor->dims[0] != count) {
      return Refuse(InvalidArgument("tensor '{}' has shape {}, the model's metadata needs {}",
                                    tensor->name, Shape(*tensor), count));
    }
    const absl::StatusOr<WeightType> type = ComputableType(*tensor);
    if (!type.ok()) return RefuseType(*tensor, type.status());
    out.resize(static_cast<std::size_t>(count));
    DequantizeRow(*type, tensor->data.data(), out);
    FiniteCheck check(*tensor, *type);
    check.CheckRows(0, 1);
    const absl::Status finite = check.status();
    return finite.ok() ? finite : Refuse(finite);
  }

  absl::Status PlanLayer(std::int64_t index) {
    LayerWeights& layer = weights_.layers_[static_cast<std::size_t>(index)];
    const std::string prefix = fmt::format("blk.{}.", index);
    const std::int64_t embedding = config_.embedding_length;
    const std::int64_t feed_forward = config_.feed_forward_length;
    CAIRN_RETURN_IF_ERROR(
        ReadVector(prefix + "attn_norm.weight", embedding, true, layer.attention_norm));
    CAIRN_RETURN_IF_ERROR(
        ReadVector(prefix + "ffn_norm.weight", embedding, true, layer.feed_forward_norm));
    CAIRN_RETURN_IF_ERROR(PlanAttention(prefix, layer));
    CAIRN_RETURN_IF_ERROR(
        PlanMatrix(prefix + "ffn_gate.weight", feed_forward, embedding, layer.gate));
    CAIRN_RETURN_IF_ERROR(PlanMatrix(prefix + "ffn_up.weight", feed_forward, embedding, layer.up));
    CAIRN_RETURN_IF_ERROR(
        PlanMatrix(prefix + "ffn_down.weight", embedding, feed_forward, layer.down));
    CAIRN_RETURN_IF_ERROR(
        ReadVector(prefix + "ffn_gate.bias", feed_forward, false, layer.gate_bias));
    CAIRN_RETURN_IF_ERROR(ReadVector(prefix + "ffn_up.bias", feed_forward, false, layer.up_bias));
    return ReadVector(prefix + "ffn_down.bias", embedding, false, layer.down_bias);
  }

  absl::Status PlanAttention(const std::string& prefix, LayerWeights& layer) {
    const std::int64_t embedding = config_.embedding_length;
    const std::int64_t query = config_.query_length();
    const std::int64_t kv = config_.kv_length();
    const std::size_t first_task = tasks_.size();
    const GgufTensor* fused = file_.FindTensor(prefix + "attn_qkv.weight");
    if (fused != nullptr) {
      const std::int64_t rows = query + 2 * kv;
      CAIRN_RETURN_IF_ERROR(PlanRows(*fused, rows, 0, query, embedding, layer.query));
      CAIRN_RETURN_IF_ERROR(PlanRows(*fused, rows, query, kv, embedding, layer.key));
      CAIRN_RETURN_IF_ERROR(PlanRows(*fused, rows, query + kv, kv, embedding, layer.value));
      CAIRN_RETURN_IF_ERROR(ReadFusedBias(prefix + "attn_qkv.bias", layer));
    } else {
      CAIRN_RETURN_IF_ERROR(PlanMatrix(prefix + "attn_q.weight", query, embedding, layer.query));
      CAIRN_RETURN_IF_ERROR(PlanMatrix(prefix + "attn_k.weight", kv, embedding, layer.key));
      CAIRN_RETURN_IF_ERROR(PlanMatrix(prefix + "attn_v.weight", kv, embedding, layer.value));
      CAIRN_RETURN_IF_ERROR(ReadVector(prefix + "attn_q.bias", query, false, layer.query_bias));
      CAIRN_RETURN_IF_ERROR(ReadVector(prefix + "attn_k.bias", kv, false, layer.key_bias));
      CAIRN_RETURN_IF_ERROR(ReadVector(prefix + "attn_v.bias", kv, false, layer.value_bias));
    }
    PlanQuerySums(first_task, layer);
    CAIRN_RETURN_IF_ERROR(
        PlanMatrix(prefix + "attn_output.weight", embedding, query, layer.attention_output));
    return ReadVector(prefix + "attn_output.bias", embedding, false, layer.attention_output_bias);
  }

  // Of the task from `first_task` on that packs the queries; none is there where they are refused.
  // Where each KV head has one query head, its queries are their sums.
  void PlanQuerySums(std::size_t first_task, LayerWeights& layer) {
    const QuerySumShape shape{config_.head_dim, config_.group_size()};
    layer.query_sum_bias = SumQueryBias(layer.query_bias, shape);
    const auto is_query = [&](const PackTask& task) { return task.target == &layer.query; };
    const auto query = std::find_if(tasks_.begin() + static_cast<std::ptrdiff_t>(first_task),
                                    tasks_.end(), is_query);
    if (query == tasks_.end() || shape.group_size == 1) return;
    PackTask sums = *query;
    sums.target = &layer.query_sum;
    sums.sums = shape;
    tasks_.push_back(sums);
  }

  absl::Status ReadFusedBias(const std::string& name, LayerWeights& layer) {
    std::vector<float> bias;
    const std::int64_t query = config_.query_length();
    const std::int64_t kv = config_.kv_length();
    CAIRN_RETURN_IF_ERROR(ReadVector(name, query + 2 * kv, false, bias));
    if (!bias.empty()) {
      layer.query_bias.assign(bias.begin(), bias.begin() + query);
      layer.key_bias.assign(bias.begin() + query, bias.begin() + query + kv);
      layer.value_bias.assign(bias.begin() + query + kv, bias.end());
    }
    return absl::OkStatus();
  }

  absl::Status PlanEmbedding() {
    weights_.embedding_ = file_.FindTensor("token_embd.weight");
    if (weights_.embedding_ == nullptr) return RefuseMissing("token_embd.weight");
    const GgufTensor& embedding = *weights_.embedding_;
    if (embedding.dims.size() != 2 || embedding.dims[0] != config_.embedding_length) {
      return Refuse(InvalidArgument(
          "tensor 'token_embd.weight' has shape {}, the model's metadata needs rows of {}",
          Shape(embedding), config_.embedding_length));
    }
    const absl::StatusOr<WeightType> type = ComputableType(embedding);
    if (!type.ok()) return RefuseType(embedding, type.status());
    weights_.embedding_type_ = *type;
    return absl::OkStatus();
  }

  absl::Status PlanEnds() {
    CAIRN_RETURN_IF_ERROR(
        ReadVector("output_norm.weight", config_.embedding_length, true, weights_.output_norm_));
    CAIRN_RETURN_IF_ERROR(
        ReadVector("rope_freqs.weight", config_.head_dim / 2, false, weights_.rope_factors_));
    for (const float factor : weights_.rope_factors_) {
      if (!(factor > 0.0F)) {
        CAIRN_RETURN_IF_ERROR(Refuse(InvalidArgument(
            "tensor 'rope_freqs.weight' holds the divisor {}; all must be positive", factor)));
        break;
      }
    }
    CAIRN_RETURN_IF_ERROR(PlanEmbedding());
    const bool tied = file_.FindTensor("output.weight") == nullptr;
    return PlanMatrix(tied ? "token_embd.weight" : "output.weight", config_.vocab_size,
                      config_.embedding_length, weights_.output_);
  }

  void PointAt(const std::byte* data) {
    for (const PackTask& task : tasks_) {
      *task.target = {task.packed_type(), task.packed_rows(), task.tensor->row_length(), data};
      data += task.packed_bytes();
    }
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  Weights& weights_;
  std::vector<PackTask> tasks_;
  // Set while surveying.
  std::vector<absl::Status>* problems_ = nullptr;
  std::set<GgufTensorType> refused_types_;
};

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(const GgufFile& file,
                                                       const ModelConfig& config, ThreadPool& pool,
                                                       const PackedCache& cache,
                                                       const PackProgress& progress) {
  std::unique_ptr<Weights> weights(new Weights());
  CAIRN_RETURN_IF_ERROR(WeightsLoader(file, config, *weights).Load(pool, cache, progress));
  return weights;
}

WeightsSurvey Weights::Survey(const GgufFile& file, const ModelConfig& config) {
  Weights weights;
  return WeightsLoader(file, config, weights).Survey();
}

void Weights::ReadEmbedding(std::int64_t token, std::span<float> out) const {
  CAIRN_CHECK(token >= 0 && token < embedding_->row_count());
  CAIRN_CHECK_EQ(static_cast<std::int64_t>(out.size()), embedding_->row_length());
  DequantizeRow(embedding_type_, embedding_->data.data() + token * embedding_->row_bytes(), out);
}

}  // namespace cairn::compute
