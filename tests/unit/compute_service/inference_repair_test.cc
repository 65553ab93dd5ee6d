// Conversations whose stored keys and values are damaged, through InferenceService: they are
// computed again from their tokens, and go on as if nothing had been.
#include <algorithm>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/session/entries/stored_policy.h"
#include "tests/tools/faulty_device.h"
#include "tests/unit/compute_service/repair_fixture.h"

namespace cairn::compute {
namespace {

// Over an engine whose pages go wrong.
class DamagedDiskTest : public RepairTest {
 protected:
  static constexpr std::int64_t kDiskBytes = std::int64_t{64} << 20;

  void Load(std::int64_t size_bytes = kDiskBytes) {
    kv::EngineOptions options;
    options.durable = false;
    options.arena_bytes_max = 0;  // every fetch reads the disk
    auto meta = kv::MetaStore::Open({.path = "/repair-test", .in_memory = true});
    ASSERT_TRUE(meta.ok()) << meta.status();
    auto engine =
        kv::Engine::Open(options, kv::StoreId{}, disk_.Open(size_bytes), *std::move(meta));
    ASSERT_TRUE(engine.ok()) << engine.status();
    LoadModel("", std::make_unique<InProcessKvNode>(*std::move(engine)));
  }
  // All that is stored until now.
  void Damage() {
    for (std::int64_t page = 2; page < kDiskBytes / 4096; ++page) {
      const std::vector<std::byte> bytes = disk_.PageBytes(page);
      const bool used = std::any_of(bytes.begin(), bytes.end(),
                                    [](std::byte byte) { return byte != std::byte{0}; });
      if (used) disk_.CorruptPage(page);
    }
  }
  std::int64_t Fork(std::int64_t conversation_id, std::int64_t token_count) {
    v1::ForkConversationRequest request;
    request.set_conversation_id(conversation_id);
    request.set_token_count(token_count);
    v1::ForkConversationResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ForkConversation(&context, request, &response).ok());
    return response.conversation_id();
  }
  void Delete(std::int64_t conversation_id) {
    v1::DeleteConversationRequest request;
    request.set_conversation_id(conversation_id);
    v1::DeleteConversationResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->DeleteConversation(&context, request, &response).ok());
  }
  std::int64_t FlashUsed() { return state_.runtime().value()->node->Stats()->flash_used_bytes; }

  kv::FaultyDisk disk_{{.size_bytes = kDiskBytes, .seed = 5}};
};

// Bit for bit, and with the random numbers of the turn before.
TEST_F(DamagedDiskTest, AConversationGoesOnAsOneThatIsWholeDoes) {
  Load();
  const Tokens prompt = SomeTokens(700);
  const Tokens next = SomeTokens(20);
  const std::int64_t damaged = Make(prompt);
  Damage();
  const std::int64_t twin = Make(prompt);
  const std::vector<v1::Conversation> before = List();
  ASSERT_TRUE(GoOn(twin, next).ok());
  const Tokens ids = Ids();
  const std::vector<float> log_probabilities = LogProbabilities();

  const grpc::Status status = GoOn(damaged, next);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Ids(), ids);
  EXPECT_EQ(LogProbabilities(), log_probabilities);
  ExpectRecomputed(705);
  EXPECT_EQ(Started().conversation_id(), damaged);
  EXPECT_EQ(Started().reused_token_count(), 705);
  EXPECT_EQ(Started().prompt_token_count(), 20);
  EXPECT_EQ(events_.back().finished().conversation_token_count(), 733);
  EXPECT_EQ(events_.back().finished().reused_token_count(), 705);

  const std::vector<v1::Conversation> after = List();
  ASSERT_EQ(after.size(), 2U);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].conversation_id(), before[i].conversation_id());
    EXPECT_EQ(after[i].conversation_uid(), before[i].conversation_uid());
    EXPECT_EQ(after[i].label(), "a label");
    EXPECT_EQ(after[i].create_time().nanos(), before[i].create_time().nanos());
  }
  // It is whole, and both turn out alike.
  ASSERT_TRUE(GoOn(damaged, next).ok());
  EXPECT_TRUE(Recomputings().empty());
  const Tokens third = Ids();
  ASSERT_TRUE(GoOn(twin, next).ok());
  EXPECT_EQ(Ids(), third);
  Delete(damaged);
  Delete(twin);
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

TEST_F(DamagedDiskTest, SmallKeysStayAsTheConversationHasThem) {
  Load();
  SessionOptions& options = (*state_.runtime())->options;
  options.small_key_bits = "4";
  const std::int64_t damaged = Make(SomeTokens(700), "kvswap");
  Damage();
  options.small_key_bits = "1";  // of new ones
  const grpc::Status status = GoOn(damaged, SomeTokens(20));
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectRecomputed(705);
  const absl::StatusOr<StoredPolicy> stored =
      ReadStoredPolicy(*(*state_.runtime())->node, {SessionId(damaged), ""});
  ASSERT_TRUE(stored.ok()) << Message(stored.status());
  EXPECT_EQ(SmallKeyBitsOf(*stored), "4");
}

// Another policy than the daemon's, whose clusters depend on how the tokens came.
TEST_F(DamagedDiskTest, ThePolicyAndItsOptionsStay) {
  Load();
  const Tokens prompt = SomeTokens(900);
  const Tokens next = SomeTokens(3);
  const auto make = [&] {
    v1::GenerateRequest request = Request(0, prompt, -1);
    request.mutable_retrieval()->set_policy("dynakv");
    request.mutable_retrieval()->set_select_tokens_min(200);
    request.mutable_retrieval()->set_cluster_target_entries(5);
    EXPECT_TRUE(Generate(request).ok());
    return Started().conversation_id();
  };
  const std::int64_t damaged = make();
  Damage();
  const std::int64_t twin = make();
  ASSERT_TRUE(Run(twin, next, 12).ok());
  const std::vector<float> log_probabilities = LogProbabilities();
  const grpc::Status status = Run(damaged, next, 12);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectRecomputed(900);
  EXPECT_EQ(Started().policy(), "dynakv");
  EXPECT_EQ(LogProbabilities(), log_probabilities);
  v1::GenerateRequest other = Request(damaged, next, 1);
  other.mutable_retrieval()->set_cluster_target_entries(6);
  EXPECT_EQ(Generate(other).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// They share what is damaged; each is computed again when it is gone on with.
TEST_F(DamagedDiskTest, ForksAreComputedAgainEachByItself) {
  Load();
  const Tokens prompt = SomeTokens(600);
  const Tokens next = SomeTokens(10);
  const std::int64_t parent = Make(prompt);
  const std::int64_t fork = Fork(parent, 400);
  const std::int64_t whole_fork = Fork(parent, 605);
  Damage();
  ASSERT_TRUE(Run(0, {prompt.begin(), prompt.begin() + 400}, -1).ok());
  ASSERT_TRUE(Run(Started().conversation_id(), next, 6).ok());
  const std::vector<float> of_fork = LogProbabilities();
  ASSERT_TRUE(Run(Make(prompt), next, 6).ok());
  const std::vector<float> of_parent = LogProbabilities();

  ASSERT_TRUE(Run(fork, next, 6).ok());
  ExpectRecomputed(400);
  EXPECT_EQ(LogProbabilities(), of_fork);
  ASSERT_TRUE(Run(parent, next, 6).ok());
  ExpectRecomputed(605);
  EXPECT_EQ(LogProbabilities(), of_parent);
  ASSERT_TRUE(Run(whole_fork, next, 6).ok());
  ExpectRecomputed(605);
  EXPECT_EQ(LogProbabilities(), of_parent);
  for (const std::int64_t id : {fork, parent, whole_fork}) {
    ASSERT_TRUE(Run(id, next, 3).ok());
    EXPECT_TRUE(Recomputings().empty());
  }
  for (const v1::Conversation& conversation : List()) Delete(conversation.conversation_id());
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

TEST_F(DamagedDiskTest, WithoutRoomForASecondCopyItStaysAndIsComputedWhenThereIsRoom) {
  Load(std::int64_t{1400} << 10);
  const Tokens prompt = SomeTokens(700);
  const std::int64_t damaged = Make(prompt);
  Damage();
  const std::int64_t other = Make(prompt);
  while (Run(other, SomeTokens(200), -1).ok()) {
  }
  const std::int64_t used = FlashUsed();
  const grpc::Status status = Run(damaged, SomeTokens(5), 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  for (const std::string_view part :
       {"fails its check", "computing the conversation again from its tokens failed",
        "what is stored of it is as it was", "flash is full", "room for a second copy"}) {
    EXPECT_TRUE(Contains(status.error_message(), part)) << status.error_message();
  }
  EXPECT_EQ(FlashUsed(), used);
  EXPECT_EQ(List().size(), 2U);
  Delete(other);
  EXPECT_TRUE(Run(damaged, SomeTokens(5), 3).ok());
  ExpectRecomputed(705);
}

// As any prompt; nothing is left of it.
TEST_F(DamagedDiskTest, ACancelledCallLeavesTheConversationAsItWas) {
  Load();
  const std::int64_t damaged = Make(SomeTokens(2000));
  Damage();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(damaged, SomeTokens(5), 3));
  v1::GenerateEvent event;
  while (reader->Read(&event) && !event.has_recomputing()) {
  }
  context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (status.ok()) GTEST_SKIP() << "the turn ended before it could be cancelled";
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  // Waits for the turn before.
  EXPECT_TRUE(Run(damaged, SomeTokens(5), -1).ok());
  EXPECT_EQ(List().size(), 1U);
  Delete(damaged);
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

}  // namespace
}  // namespace cairn::compute
