#include "kv-node/service/token_registry.h"

#include <string>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

TEST(TokenRegistryTest, ATokenStandsForTheAppThatItWasGivenTo) {
  TokenRegistry registry;
  const auto first = registry.TokenOf(AppId(1));
  const auto second = registry.TokenOf(AppId(2));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*registry.TokenOf(AppId(1)), *first);
  EXPECT_EQ(*registry.AppOf(*first), AppId(1));
  EXPECT_EQ(*registry.AppOf(*second), AppId(2));
  for (const std::string& guess : {std::string(), first->substr(1), *first + "0"}) {
    EXPECT_EQ(registry.AppOf(guess).status().code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST(TokenRegistryTest, TheNumberOfAppsIsLimited) {
  TokenRegistry registry;
  for (std::int64_t app = 1; app <= kAppCountMax; ++app)
    ASSERT_TRUE(registry.TokenOf(AppId(app)).ok());
  EXPECT_EQ(registry.TokenOf(AppId(kAppCountMax + 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(registry.TokenOf(AppId(1)).ok());
}

}  // namespace
}  // namespace cairn::kv
