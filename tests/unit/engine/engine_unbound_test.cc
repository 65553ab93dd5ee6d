// What happens to an open session before its channel comes.
#include <future>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

struct FailureObserver : ChannelObserver {
  void OnCheckpointed(OpSeq, const Checkpointed&) override {}
  void OnFailure(OpSeq, const absl::Status& status) override {
    if (!told) failure.set_value(status);
    told = true;  // the engine's end tells another
  }
  void OnReply(RequestId, absl::StatusOr<ReadReply>) override {}
  void OnRoom() override {}
  std::promise<absl::Status> failure;
  bool told = false;
};

class EngineUnboundTest : public ::testing::Test {
 protected:
  void Start(bool place_at_idle) {
    engine_.reset();
    MetaOptions meta;
    meta.path = directory_.File("meta");
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status();
    EngineOptions options;
    options.place_at_idle = place_at_idle;
    options.place_entries_min = 1;
    auto engine = Engine::Open(options, StoreId{}, disk_.Open(), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // A session whose entries have records in a log run and no place yet.
  void MakeLoggedSession() {
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = id->id;
    auto session = TestSession::Open(*engine_, id_);
    ASSERT_TRUE(session.ok()) << session.status();
    const Positions positions = Positions::Range(0, 5);
    Append append;
    append.clusters.push_back(
        {{0, ClusterId(1)}, positions, EntriesBytes(layout_, 1, 0, 0, positions)});
    (*session)->Send(append);
    Checkpoint checkpoint;
    checkpoint.token_count = 5;
    checkpoint.token_ids.assign(5, 1);
    checkpoint.next_cluster_ids.assign(2, 100);
    const auto done = (*session)->WaitFor((*session)->Send(checkpoint));
    ASSERT_TRUE(done.ok()) << done.status();
  }

  const EntryLayout layout_{1, 1, 40, KvFormat::kF16};
  const test::TempDir directory_;
  FaultyDisk disk_{{.size_bytes = std::int64_t{1} << 20}};
  std::unique_ptr<Engine> engine_;
  SessionId id_;
};

TEST_F(EngineUnboundTest, AWriteThatFailsBeforeTheChannelComesIsToldToTheChannel) {
  ASSERT_TRUE(InitLogging("engine_unbound_test", "error").ok());
  Start(/*place_at_idle=*/false);
  MakeLoggedSession();
  Start(/*place_at_idle=*/true);
  disk_.FailNextWrites(1);
  const auto attachment = Await<Attachment>([&](auto done) {
    engine_->OpenSession(kDefaultApp, {{id_, ""}, {}}, std::move(done));
  });
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  while (disk_.hits().failed_writes == 0) {
  }
  // The device is polled once more before the engine answers this.
  Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); }).IgnoreError();
  Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); }).IgnoreError();
  auto observer = std::make_shared<FailureObserver>();
  const auto channel = Await<std::shared_ptr<Channel>>([&](auto done) {
    engine_->Attach(kDefaultApp, id_, attachment->epoch, observer, std::move(done));
  });
  ASSERT_TRUE(channel.ok()) << channel.status();
  const absl::Status failure = observer->failure.get_future().get();
  EXPECT_NE(Message(failure).find("write"), std::string::npos) << failure;
}

}  // namespace
}  // namespace cairn::kv
