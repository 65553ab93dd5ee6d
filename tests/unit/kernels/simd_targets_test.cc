// Which instruction sets the kernel tests go through.
#include <cstdint>
#include <iostream>
#include <string>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tests/unit/kernels/kernel_testing.h"

namespace cairn::compute {
namespace {

TEST(SimdTargetsTest, TestsTakeEveryInstructionSetThatTheMachineHasOnce) {
  const std::int64_t targets = SimdTargets();
  std::int64_t taken = 0;
  std::string names;
  ForEachSimdTarget([&] {
    const std::int64_t entry = std::int64_t{1} << hwy::GetChosenTarget().GetIndex();
    EXPECT_EQ(taken & entry, 0);
    taken |= entry;
  });
  EXPECT_EQ(taken, HWY_CHOSEN_TARGET_SHIFT(targets));
  for (std::int64_t rest = targets; rest != 0; rest &= rest - 1) {
    names += std::string(" ") + hwy::TargetName(rest & -rest);
  }
  std::cout << "SIMD targets:" << names << "\n";
#if HWY_ARCH_ARM_A64
  EXPECT_EQ(targets, HWY_NEON);
#endif
}

}  // namespace
}  // namespace cairn::compute
