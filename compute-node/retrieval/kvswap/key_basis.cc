#include "compute-node/retrieval/kvswap/key_basis.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <Eigen/Eigenvalues>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

using Matrix = Eigen::MatrixXf;

constexpr float kLargestNumber = 127.0F;
// An axis of less deviation than this share of the first one's tells nothing.
constexpr float kDeviationShareMin = 1e-4F;

// Of a normal distribution's deviation.
float StepOf(int bits) {
  switch (bits) {
    case 1:
      return 1.5958F;
    case 2:
      return 0.9957F;
    case 3:
      return 0.5860F;
    case 4:
      return 0.3352F;
    default:
      return 0.0308F;
  }
}

// (joint_dim, token), less the mean.
Matrix Centred(std::span<const float> sample, std::int64_t joint_dim, std::vector<float>& mean) {
  Matrix keys = Eigen::Map<const Matrix>(sample.data(), joint_dim,
                                         static_cast<Eigen::Index>(sample.size()) / joint_dim);
  keys = keys.unaryExpr([](float number) { return std::isfinite(number) ? number : 0.0F; });
  const Eigen::VectorXf means = keys.rowwise().mean();
  keys.colwise() -= means;
  std::copy(means.begin(), means.end(), mean.begin());
  return keys;
}

template <typename Number>
void AppendAll(std::span<const Number> numbers, std::string& out) {
  out.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
}

template <typename Number>
void TakeAll(std::string_view& bytes, std::span<Number> numbers) {
  std::memcpy(numbers.data(), bytes.data(), numbers.size_bytes());
  bytes.remove_prefix(numbers.size_bytes());
}

bool AllFinite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](float number) { return std::isfinite(number); });
}

}  // namespace

KeyBasis::KeyBasis(std::int64_t joint_dim, const KeyCodeShape& shape)
    : joint_dim_(joint_dim),
      shape_(shape),
      mean_(static_cast<std::size_t>(joint_dim)),
      scales_(static_cast<std::size_t>(shape.axis_count())),
      steps_(static_cast<std::size_t>(shape.axis_count())),
      axes_(static_cast<std::size_t>(joint_dim * shape.axis_count())) {
  CAIRN_CHECK(shape.IsValid() && joint_dim > 0);
}

KeyBasis KeyBasis::Learn(std::span<const float> sample, std::int64_t joint_dim,
                         const KeyCodeShape& shape) {
  KeyBasis basis(joint_dim, shape);
  const std::int64_t token_count = std::ssize(sample) / joint_dim;
  CAIRN_CHECK(token_count >= kBasisTokensMin && token_count * joint_dim == std::ssize(sample));
  const Matrix keys = Centred(sample, joint_dim, basis.mean_);
  Matrix moments = Matrix::Zero(joint_dim, joint_dim);
  moments.selfadjointView<Eigen::Lower>().rankUpdate(keys, 1.0F / static_cast<float>(token_count));
  // Eigenvalues ascend.
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(moments);
  if (solver.info() != Eigen::Success) return basis;
  const float largest = std::max(solver.eigenvalues()[joint_dim - 1], 0.0F);
  for (std::int64_t axis = 0; axis < std::min(shape.axis_count(), joint_dim); ++axis) {
    const Eigen::Index column = joint_dim - 1 - axis;
    const float deviation = std::sqrt(std::max(solver.eigenvalues()[column], 0.0F));
    if (!(deviation > kDeviationShareMin * std::sqrt(largest))) break;
    const Eigen::VectorXf direction = solver.eigenvectors().col(column);
    const float scale = direction.cwiseAbs().maxCoeff() / kLargestNumber;
    const std::size_t at = static_cast<std::size_t>(axis);
    basis.scales_[at] = scale;
    basis.steps_[at] = StepOf(shape.BitsOf(axis)) * deviation;
    for (std::int64_t i = 0; i < joint_dim; ++i) {
      basis.axes_[static_cast<std::size_t>(i * shape.axis_count()) + at] =
          static_cast<std::int8_t>(std::lround(direction[i] / scale));
    }
  }
  return basis;
}

std::int64_t KeyBasis::SavedBytes(std::int64_t joint_dim, const KeyCodeShape& shape) {
  const std::int64_t floats = joint_dim + 2 * shape.axis_count();
  return floats * static_cast<std::int64_t>(sizeof(float)) + joint_dim * shape.axis_count();
}

void KeyBasis::Save(std::string& out) const {
  AppendAll(std::span<const float>(mean_), out);
  AppendAll(std::span<const float>(scales_), out);
  AppendAll(std::span<const float>(steps_), out);
  AppendAll(std::span<const std::int8_t>(axes_), out);
}

std::optional<KeyBasis> KeyBasis::Restore(std::string_view bytes, std::int64_t joint_dim,
                                          const KeyCodeShape& shape) {
  KeyBasis basis(joint_dim, shape);
  CAIRN_CHECK_EQ(std::ssize(bytes), SavedBytes(joint_dim, shape));
  TakeAll(bytes, std::span(basis.mean_));
  TakeAll(bytes, std::span(basis.scales_));
  TakeAll(bytes, std::span(basis.steps_));
  TakeAll(bytes, std::span(basis.axes_));
  if (!AllFinite(basis.mean_) || !AllFinite(basis.scales_) || !AllFinite(basis.steps_)) {
    return std::nullopt;
  }
  return basis;
}

void KeyBasis::Encode(std::span<const float> joint_keys, std::span<std::uint8_t> codes) const {
  const std::size_t dim = static_cast<std::size_t>(joint_dim_);
  const std::size_t axis_count = scales_.size();
  CAIRN_CHECK_EQ(joint_keys.size() % dim, 0U);
  CAIRN_CHECK_EQ(codes.size(), joint_keys.size() / dim * axis_count);
  std::vector<float> centred(joint_keys.size());
  for (std::size_t i = 0; i < joint_keys.size(); ++i) {
    centred[i] = (std::isfinite(joint_keys[i]) ? joint_keys[i] : 0.0F) - mean_[i % dim];
  }
  std::vector<float> numbers(codes.size(), 0.0F);
  AddProjections(centred, joint_dim_, axes_, shape_.axis_count(), numbers);
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    const auto largest = static_cast<float>(shape_.CodeMaxOf(static_cast<std::int64_t>(axis)));
    for (std::size_t at = axis; at < codes.size(); at += axis_count) {
      const float steps = steps_[axis] > 0 ? numbers[at] * scales_[axis] / steps_[axis] : 0.0F;
      // Clamped first: what is too large for an integer is not converted.
      codes[at] =
          static_cast<std::uint8_t>(std::lround(std::clamp(steps + largest / 2, 0.0F, largest)));
    }
  }
}

std::vector<float> KeyBasis::Project(std::span<const float> query, std::int32_t head) const {
  const std::int64_t first = head * std::ssize(query);
  CAIRN_CHECK(head >= 0 && first + std::ssize(query) <= joint_dim_);
  std::vector<float> numbers(static_cast<std::size_t>(shape_.axis_count()), 0.0F);
  const auto axes = std::span(axes_).subspan(static_cast<std::size_t>(first * shape_.axis_count()),
                                             query.size() * numbers.size());
  AddProjections(query, std::ssize(query), axes, shape_.axis_count(), numbers);
  for (std::size_t axis = 0; axis < numbers.size(); ++axis) {
    numbers[axis] *= scales_[axis] * steps_[axis];
  }
  return numbers;
}

}  // namespace cairn::compute
