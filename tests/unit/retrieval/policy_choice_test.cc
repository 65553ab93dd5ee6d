#include "compute-node/retrieval/policy_choice.h"

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"

namespace cairn::compute {
namespace {

PolicyChoice Example() {
  PolicyChoice choice;
  choice.name = "near";
  choice.selection = {.select_percent = 12.5,
                      .select_tokens_min = 64,
                      .select_tokens_max = 0x0102,
                      .cluster_target_entries = 9,
                      .seed = 0xfedcba9876543210,
                      .select_ahead = false};
  return choice;
}

constexpr const char* kNearHex = "046e656172";
// Its numbers, behind the name.
constexpr const char* kExampleHex =
    "0000000000002940"
    "4000000000000000"
    "0201000000000000"
    "0900000000000000"
    "1032547698badcfe";

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

absl::Status Unwrapped(std::int32_t version, std::string_view state) {
  return UnwrapPolicyState(version, state).status();
}

// Stores of users hold these bytes.
TEST(PolicyChoiceTest, WrappedStateHasTheseBytes) {
  const PutPolicyState wrapped = WrapPolicyState(Example(), {0x01020304, "own"});
  EXPECT_EQ(wrapped.version, 16);
  EXPECT_EQ(Hex(wrapped.state), kNearHex + std::string(kExampleHex) + "04030201" + "6f776e");
}

// The same with one number more.
TEST(PolicyChoiceTest, WrappedStateOfAPolicyThatEstimatesHasTheseBytes) {
  PolicyChoice choice = Example();
  choice.selection.estimate_percent = 25;
  const PutPolicyState wrapped = WrapPolicyState(choice, {0x01020304, "own"});
  EXPECT_EQ(wrapped.version, 17);
  EXPECT_EQ(Hex(wrapped.state),
            kNearHex + std::string(kExampleHex) + "0000000000003940" + "04030201" + "6f776e");
  const auto unwrapped = UnwrapPolicyState(wrapped.version, wrapped.state);
  ASSERT_TRUE(unwrapped.ok()) << unwrapped.status();
  EXPECT_EQ(unwrapped->choice.selection, choice.selection);
  EXPECT_EQ(unwrapped->state, "own");
  // Without an estimate it would have the other version.
  std::string none = wrapped.state;
  none.replace(45, 8, 8, 0);
  EXPECT_FALSE(Unwrapped(17, none).ok());
  EXPECT_FALSE(Unwrapped(17, std::string_view(wrapped.state).substr(0, 52)).ok());
}

// The same, and the number may be zero.
TEST(PolicyChoiceTest, WrappedStateOfAPolicyThatSelectsAheadHasTheseBytes) {
  PolicyChoice choice = Example();
  choice.name = "dynakv";
  choice.selection.select_ahead = true;
  const PutPolicyState wrapped = WrapPolicyState(choice, {0x01020304, "own"});
  EXPECT_EQ(wrapped.version, 18);
  EXPECT_EQ(Hex(wrapped.state), "0664796e616b76" + std::string(kExampleHex) + "0000000000000000" +
                                    "04030201" + "6f776e");
  const auto unwrapped = UnwrapPolicyState(wrapped.version, wrapped.state);
  ASSERT_TRUE(unwrapped.ok()) << unwrapped.status();
  EXPECT_EQ(unwrapped->choice.selection, choice.selection);
  EXPECT_EQ(unwrapped->state, "own");
  EXPECT_FALSE(Unwrapped(18, std::string_view(wrapped.state).substr(0, 54)).ok());
  choice.selection.estimate_percent = 25;
  const PutPolicyState both = WrapPolicyState(choice, {1, ""});
  EXPECT_EQ(both.version, 18);
  EXPECT_EQ(UnwrapPolicyState(18, both.state)->choice.selection, choice.selection);
}

// Others have no use for it: an older Cairn reads what is stored of them.
TEST(PolicyChoiceTest, OnlyDynaKvIsStoredAsOneThatSelectsAhead) {
  PolicyChoice choice = Example();
  choice.selection.select_ahead = true;
  EXPECT_EQ(WrapPolicyState(choice, {1, ""}).version, 16);
  EXPECT_FALSE(choice.Normalised().selection.select_ahead);
  EXPECT_TRUE(choice == Example());
  choice.name = "dynakv";
  EXPECT_TRUE(choice.Normalised().selection.select_ahead);
  PolicyChoice otherwise = choice;
  otherwise.selection.select_ahead = false;
  EXPECT_FALSE(choice == otherwise);
}

TEST(PolicyChoiceTest, ARequestLeavesWhatItDoesNotSet) {
  PolicyChoice choice = Example();
  choice.name = "dynakv";
  choice.selection.estimate_percent = 30;
  EXPECT_EQ(PolicyRequest().On(choice), choice);
  EXPECT_EQ(PolicyRequest::Exactly(choice).On(PolicyChoice()), choice);
  EXPECT_EQ(PolicyRequest{.name = "full"}.On(choice).selection, choice.selection);
  PolicyChoice changed = choice;
  changed.selection.select_percent = 8;
  EXPECT_EQ(PolicyRequest{.select_percent = 8}.On(choice), changed);
  changed = choice;
  changed.selection.select_tokens_min = 70;
  EXPECT_EQ(PolicyRequest{.select_tokens_min = 70}.On(choice), changed);
  changed = choice;
  changed.selection.select_tokens_max = 7000;
  EXPECT_EQ(PolicyRequest{.select_tokens_max = 7000}.On(choice), changed);
  changed = choice;
  changed.selection.cluster_target_entries = 3;
  EXPECT_EQ(PolicyRequest{.cluster_target_entries = 3}.On(choice), changed);
  changed = choice;
  changed.selection.seed = ~std::uint64_t{0};
  EXPECT_EQ(PolicyRequest{.seed = ~std::uint64_t{0}}.On(choice), changed);
  changed = choice;
  changed.selection.estimate_percent = 0;
  EXPECT_EQ(PolicyRequest{.estimate_percent = 0}.On(choice), changed);
  changed = choice;
  changed.selection.select_ahead = true;
  EXPECT_EQ(PolicyRequest{.select_ahead = true}.On(choice), changed);
}

TEST(PolicyChoiceTest, UnwrappingGivesTheChoiceAndThePolicysOwnState) {
  for (const std::string& own : {std::string(), std::string("\0x", 2), std::string(5000, 'a')}) {
    const PutPolicyState wrapped = WrapPolicyState(Example(), {-7, own});
    const auto unwrapped = UnwrapPolicyState(wrapped.version, wrapped.state);
    ASSERT_TRUE(unwrapped.ok()) << unwrapped.status();
    EXPECT_TRUE(unwrapped->choice == Example());
    EXPECT_TRUE(unwrapped->choice.selection == Example().selection);
    EXPECT_EQ(unwrapped->version, -7);
    EXPECT_EQ(unwrapped->state, own);
  }
}

TEST(PolicyChoiceTest, StateOfFullIsStoredAsItIs) {
  PolicyChoice full;
  full.selection.select_percent = 5;
  const PutPolicyState stored = WrapPolicyState(full, {2, "own"});
  EXPECT_EQ(stored.version, 2);
  EXPECT_EQ(stored.state, "own");
  const auto unwrapped = UnwrapPolicyState(2, "own");
  ASSERT_TRUE(unwrapped.ok());
  EXPECT_EQ(unwrapped->choice.name, "full");
  EXPECT_EQ(unwrapped->version, 2);
  EXPECT_EQ(unwrapped->state, "own");
}

TEST(PolicyChoiceTest, DamagedStateIsRefused) {
  const PutPolicyState wrapped = WrapPolicyState(Example(), {1, ""});
  // On the heap and of that size alone, so that AddressSanitizer sees a read beyond it.
  for (std::size_t bytes = 0; bytes < wrapped.state.size(); ++bytes) {
    const std::vector<char> cut(wrapped.state.begin(),
                                wrapped.state.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(Unwrapped(16, {cut.data(), cut.size()}).code(), absl::StatusCode::kInvalidArgument);
  }
  const auto changed = [&](std::size_t at, char to) {
    std::string state = wrapped.state;
    state[at] = to;
    return Unwrapped(16, state);
  };
  EXPECT_FALSE(changed(0, 0).ok());
  EXPECT_FALSE(changed(0, 33).ok());
  EXPECT_FALSE(changed(0, '\xff').ok());
  EXPECT_FALSE(changed(1, '\n').ok());
  EXPECT_FALSE(changed(12, '\xff').ok());  // select_percent below zero
  EXPECT_FALSE(changed(29, 0x7f).ok());    // cluster_target_entries
  EXPECT_TRUE(changed(1, 'd').ok());
  PolicyChoice full;
  std::string as_full = wrapped.state;
  as_full.replace(1, 4, full.name);
  EXPECT_FALSE(Unwrapped(16, as_full).ok());
}

TEST(PolicyChoiceTest, StateOfALaterVersionSaysSo) {
  const absl::Status status = Unwrapped(19, "whatever");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("version 19"), std::string::npos);
}

TEST(PolicyChoiceTest, OnlyKnownNamesAndAllowedOptionsAreValid) {
  for (const PolicyKind& kind : PolicyKinds()) {
    PolicyChoice choice;
    choice.name = std::string(kind.name);
    EXPECT_TRUE(choice.Validate().ok()) << kind.name;
    EXPECT_LE(std::ssize(kind.name), kPolicyNameBytesMax);
  }
  const absl::Status unknown = Example().Validate();
  EXPECT_NE(Message(unknown).find("'near'"), std::string::npos);
  EXPECT_NE(Message(unknown).find("full"), std::string::npos);
  PolicyChoice choice;
  choice.selection.select_percent = 101;
  EXPECT_FALSE(choice.Validate().ok());
  choice.selection.select_percent = 3;
  choice.selection.estimate_percent = 100;
  EXPECT_TRUE(choice.Validate().ok());
  choice.selection.estimate_percent = 100.5;
  EXPECT_FALSE(choice.Validate().ok());
}

TEST(PolicyChoiceTest, OptionsCountUnlessEverythingIsRead) {
  PolicyChoice a = Example();
  PolicyChoice b = Example();
  EXPECT_TRUE(a == b);
  b.selection.seed = 1;
  EXPECT_FALSE(a == b);
  a.name = b.name = "full";
  EXPECT_TRUE(a == b);
}

TEST(PolicyChoiceTest, DescriptionNamesWhatDiffers) {
  PolicyChoice a = Example();
  a.selection.select_percent = static_cast<double>(3.3F);
  EXPECT_EQ(Describe(a, PolicyChoice()), "policy near with select_percent 3.3");
  EXPECT_EQ(Describe(PolicyChoice(), a), "policy full");
  PolicyChoice b = a;
  b.selection.cluster_target_entries = 4;
  b.selection.seed = 5;
  b.selection.estimate_percent = static_cast<double>(0.1F);
  EXPECT_EQ(Describe(b, a),
            "policy near with select_percent 3.3, cluster_target_entries 4, seed 5, "
            "estimate_percent 0.1");
}

}  // namespace
}  // namespace cairn::compute
