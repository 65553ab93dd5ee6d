// A disk that goes away while the engine uses it (ENODEV for every transfer): each call is answered
// with an error that says of what, and when the disk is back the store is as it was at the last
// checkpoint that was acknowledged.
#include "tests/tools/says.h"
#include "tests/unit/engine/engine_fault_fixture.h"

namespace cairn::kv {
namespace {

using test::Says;

class VanishedDeviceTest : public EngineFaultTest {
 protected:
  // Forty tokens in cluster 1, and a carried window of five, as a checkpoint has them.
  void SetUp() override {
    EngineFaultTest::SetUp();
    Start(/*place_at_idle=*/false, /*arena_bytes_max=*/0);  // every fetch reads the disk
    Create();
    AppendTokens(1, Positions::Range(0, 40));
    CarryWindow(40);
    ASSERT_EQ(TakeCheckpoint(0, 45).ToString(), "OK");
  }
  void CarryWindow(std::int64_t first) {
    const Positions window = Positions::Range(first, 5);
    session_->Send(StageCarried{
        0, {{0, kWindowBuffer, window, window, EntriesBytes(layout_, kFaultSalt, 0, 0, window)}}});
  }
  absl::Status AppendAndCheckpoint() {
    AppendTokens(1, Positions::Range(40, 10));
    CarryWindow(50);
    return TakeCheckpoint(45, 55);
  }
  // The disk answers again; a new engine, as after a restart of the daemon.
  void ComeBack() {
    disk_.PowerCut();
    Start(/*place_at_idle=*/false, /*arena_bytes_max=*/0);
    Open();
  }
  void ExpectLastCheckpoint() {
    EXPECT_EQ(session_->attachment().token_count, 45);
    ExpectWhole(1, Positions::Range(0, 40));
    const auto carried = session_->Read(GetCarried{0});
    ASSERT_TRUE(carried.ok()) << carried.status();
    const CarriedEntries& window = std::get<CarriedReply>(*carried).carried.at(0);
    EXPECT_EQ(window.positions, Positions::Range(40, 5));
    EXPECT_TRUE(window.entries == EntriesBytes(layout_, kFaultSalt, 0, 0, Positions::Range(40, 5)));
  }
};

TEST_F(VanishedDeviceTest, FetchesAreUnreadableAndWholeAgainWhenItIsBack) {
  disk_.DieAfter(0);
  for (int round = 0; round < 3; ++round) {
    const auto fetched = FetchCluster(1);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(fetched->outcome, FetchOutcome::kUnreadable);
    EXPECT_TRUE(fetched->spans.empty());
  }
  EXPECT_EQ(Stats().unreadable_part_count, 3);
  EXPECT_EQ(Stats().lost_part_count, 0);
  ComeBack();
  ExpectLastCheckpoint();
}

// What cannot be read is not what fails its check: nobody should be told to delete it.
TEST_F(VanishedDeviceTest, CarriedEntriesAreSaidToBeUnreadable) {
  disk_.DieAfter(0);
  const absl::Status status = session_->Read(GetCarried{0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(Says(status, "cannot be read now, and nothing is known to be lost")) << status;
  EXPECT_FALSE(Says(status, "delete")) << status;
  ComeBack();
  ExpectLastCheckpoint();
}

// Before the first write of a checkpoint, after it, ... up to its flush.
TEST_F(VanishedDeviceTest, ACheckpointFailsWhereverItGoesAndTheLastOneStays) {
  bool done = false;
  for (std::int64_t steps = 0; !done; ++steps) {
    SCOPED_TRACE(steps);
    ASSERT_LT(steps, 50);
    disk_.DieAfter(steps);
    const absl::Status status = AppendAndCheckpoint();
    done = status.ok();
    if (done) break;
    EXPECT_TRUE(Says(status, "No such device")) << status;
    EXPECT_TRUE(Says(status, fmt::format("session {}", id_))) << status;
    EXPECT_TRUE(Says(status, "the device")) << status;  // of a file device: its path
    // The attachment has ended, and says so; nothing hangs.
    EXPECT_FALSE(FetchCluster(1).ok());
    EXPECT_FALSE(TakeCheckpoint(45, 55).ok());
    ComeBack();
    ExpectLastCheckpoint();
  }
  ComeBack();
  EXPECT_EQ(session_->attachment().token_count, 55);
  ExpectWhole(1, Positions::Range(0, 50));
}

TEST_F(VanishedDeviceTest, SessionsCanBeOpenedAndDeletedWithoutIt) {
  disk_.DieAfter(0);
  Open();
  EXPECT_EQ(session_->attachment().token_count, 45);
  EXPECT_EQ(FetchCluster(1)->outcome, FetchOutcome::kUnreadable);
  const SessionId kept = id_;
  Create();
  AppendTokens(1, Positions::Range(0, 3));
  ExpectWhole(1, Positions::Range(0, 3));  // from memory
  EXPECT_FALSE(TakeCheckpoint(0, 3).ok());
  const auto deleted = Await<std::monostate>([&](auto done) {
    engine_->DeleteSession(kDefaultApp, {id_, ""}, std::move(done));
  });
  EXPECT_TRUE(deleted.ok()) << deleted.status();
  id_ = kept;
  ComeBack();
  ExpectLastCheckpoint();
}

// What is placed while nobody waits for it.
TEST_F(VanishedDeviceTest, PlacingEndsTheAttachment) {
  Start(/*place_at_idle=*/true);
  Open();
  disk_.DieAfter(0);
  AppendTokens(101, Positions::Range(45, 30));
  constexpr int kTriesMax = 200000;
  for (int tries = 0; tries < kTriesMax && session_->failure().ok(); ++tries) Stats();
  EXPECT_TRUE(Says(session_->failure(), "No such device")) << session_->failure();
  ComeBack();
  ExpectLastCheckpoint();
}

}  // namespace
}  // namespace cairn::kv
