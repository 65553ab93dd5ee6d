// KeyBasis makes small keys: the keys of all KV heads of a token together, projected on the axes on
// which the keys of a sample differ most, each number in a few bits ("KVSwap", section 3.2: the
// joint-head low-rank adapter A; that axes have different bits is ours). Queries are projected
// likewise, head by head (Eq. 1 there), so that their product with the small key is about that with
// the key.
//
// The sample's mean is taken off first: it adds the same to the score of every token, and a softmax
// does not see it. An axis is divided in equal steps, as wide as loses least of a normal
// distribution (Max, "Quantizing for Minimum Distortion", 1960, table II).
//
// Shapes:       a joint key is (KV head, head_dim), rotated.
// Determinism:  what is learned depends on the sample alone, up to the processor's rounding.
// Threading:    one thread; const members any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute-node/kernels/key_codes.h"

namespace cairn::compute {

// Tokens that a sample has at least and at most: more do not make the axes better.
inline constexpr std::int64_t kBasisTokensMin = 128;
inline constexpr std::int64_t kBasisTokensMax = 1024;

class KeyBasis {
 public:
  // `sample` are joint keys of `joint_dim` numbers; those that are not finite count as zero. Axes
  // that the sample does not have are left empty. REQUIRES: a valid shape, kBasisTokensMin tokens.
  static KeyBasis Learn(std::span<const float> sample, std::int64_t joint_dim,
                        const KeyCodeShape& shape);

  // Bytes of Save, and in memory, of any basis of the shape.
  static std::int64_t SavedBytes(std::int64_t joint_dim, const KeyCodeShape& shape);
  void Save(std::string& out) const;
  // Nullopt for bytes that Save does not write. REQUIRES: SavedBytes of them.
  static std::optional<KeyBasis> Restore(std::string_view bytes, std::int64_t joint_dim,
                                         const KeyCodeShape& shape);

  // The codes of joint keys, one after the other. A key's do not depend on the others.
  void Encode(std::span<const float> joint_keys, std::span<std::uint8_t> codes) const;
  // What a query of a KV head, (head_dim), multiplies the codes of each axis by.
  std::vector<float> Project(std::span<const float> query, std::int32_t head) const;

  const KeyCodeShape& shape() const { return shape_; }

 private:
  KeyBasis(std::int64_t joint_dim, const KeyCodeShape& shape);

  std::int64_t joint_dim_;
  KeyCodeShape shape_;
  std::vector<float> mean_;        // (joint_dim)
  std::vector<float> scales_;      // (axis): of its numbers
  std::vector<float> steps_;       // (axis); 0: an empty axis
  std::vector<std::int8_t> axes_;  // (joint_dim, axis)
};

}  // namespace cairn::compute
