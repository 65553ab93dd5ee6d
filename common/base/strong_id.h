// StrongId makes integers of different meaning different types: a PartId cannot be passed where a
// SegmentId is wanted.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

#include <fmt/format.h>

namespace cairn {

template <typename Tag, typename Int = std::int64_t>
class StrongId {
 public:
  using Integer = Int;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Int value_ = 0;
};

}  // namespace cairn

template <typename Tag, typename Int>
struct std::hash<cairn::StrongId<Tag, Int>> {
  std::size_t operator()(cairn::StrongId<Tag, Int> id) const noexcept {
    return std::hash<Int>()(id.value());
  }
};

template <typename Tag, typename Int>
struct fmt::formatter<cairn::StrongId<Tag, Int>> : fmt::formatter<Int> {
  template <typename Context>
  auto format(cairn::StrongId<Tag, Int> id, Context& context) const {
    return fmt::formatter<Int>::format(id.value(), context);
  }
};
