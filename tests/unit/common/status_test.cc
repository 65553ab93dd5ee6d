#include "common/base/status.h"

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "common/base/error_reason.h"

namespace cairn {
namespace {

TEST(StatusTest, ErrnoBecomesACodeThatCallersCanActOn) {
  const std::pair<int, absl::StatusCode> expected[] = {
      {ENOENT, absl::StatusCode::kNotFound},
      {EEXIST, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},
      {EPERM, absl::StatusCode::kPermissionDenied},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EDQUOT, absl::StatusCode::kResourceExhausted},
      {EMFILE, absl::StatusCode::kResourceExhausted},
      {EAGAIN, absl::StatusCode::kUnavailable},
      {ECONNREFUSED, absl::StatusCode::kUnavailable},
      {ENAMETOOLONG, absl::StatusCode::kInvalidArgument},
      {EIO, absl::StatusCode::kInternal},
      {EBADF, absl::StatusCode::kInternal},
  };
  for (const auto& [error_number, code] : expected) {
    const absl::Status status = ErrnoStatus(error_number, "read page 812");
    EXPECT_EQ(status.code(), code) << error_number;
    EXPECT_EQ(Message(status).rfind("read page 812: ", 0), 0U) << Message(status);
  }
  EXPECT_EQ(Message(ErrnoStatus(EIO, "x")), "x: Input/output error");
  EXPECT_EQ(Message(ErrnoStatus(EMFILE, "x")),
            "x: Too many open files: raise the limit of open files of this process (ulimit -n, "
            "LimitNOFILE)");
}

TEST(StatusTest, FactoriesFormatTheirMessage) {
  const absl::Status status = NotFound("session {} of {}", 7, "app");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "session 7 of app");
}

TEST(StatusTest, AnnotateKeepsTheCodeAndLeavesSuccessAlone) {
  const absl::Status status = Annotate(DataLoss("page 3 failed its check"), "open store");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), "open store: page 3 failed its check");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "open store").ok());
}

TEST(StatusTest, AReasonStaysWithTheErrorWhateverItsText) {
  EXPECT_EQ(ReasonOf(absl::OkStatus()), ErrorReason::kNone);
  EXPECT_EQ(ReasonOf(InvalidArgument("too long")), ErrorReason::kNone);
  const absl::Status status =
      WithReason(InvalidArgument("too long"), ErrorReason::kContextTooShort);
  EXPECT_EQ(Message(status), "too long");
  EXPECT_EQ(ReasonOf(status), ErrorReason::kContextTooShort);
  EXPECT_EQ(ReasonOf(Annotate(status, "generate")), ErrorReason::kContextTooShort);
  const absl::Status other = Reworded(Annotate(status, "generate"), "it does not fit");
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(other), "it does not fit");
  EXPECT_EQ(ReasonOf(other), ErrorReason::kContextTooShort);
  EXPECT_TRUE(Reworded(absl::OkStatus(), "it does not fit").ok());
}

absl::Status Forward(const absl::Status& first, bool& reached) {
  CAIRN_RETURN_IF_ERROR(first);
  reached = true;
  return absl::OkStatus();
}

TEST(StatusTest, ReturnIfErrorStopsAtTheError) {
  bool reached = false;
  EXPECT_EQ(Forward(Aborted("stop"), reached), absl::AbortedError("stop"));
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Forward(absl::OkStatus(), reached).ok());
  EXPECT_TRUE(reached);
}

absl::StatusOr<int> Dereference(absl::StatusOr<std::unique_ptr<int>> pointer) {
  std::unique_ptr<int> owned;
  CAIRN_ASSIGN_OR_RETURN(owned, std::move(pointer));
  return *owned;
}

TEST(StatusTest, AssignOrReturnMovesTheValueOrReturnsTheError) {
  EXPECT_EQ(*Dereference(std::make_unique<int>(5)), 5);
  EXPECT_EQ(Dereference(Internal("broken")).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace cairn
