#include "common/daemon/flags.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

class FlagsTest : public testing::Test {
 protected:
  absl::Status Parse(std::vector<const char*> arguments) {
    socket_.reset();
    help_ = false;
    const std::array values = {ValueFlag{"--socket", &socket_}};
    const std::array switches = {SwitchFlag{"--help", &help_}};
    return ParseFlags(arguments, values, switches);
  }

  std::optional<std::string> socket_;
  bool help_ = false;
};

TEST_F(FlagsTest, ValuesComeWithASpaceOrAnEqualsSign) {
  EXPECT_TRUE(Parse({"--socket", "a"}).ok());
  EXPECT_EQ(socket_, "a");
  EXPECT_TRUE(Parse({"--socket=b=c", "--help"}).ok());
  EXPECT_EQ(socket_, "b=c");
  EXPECT_TRUE(help_);
}

TEST_F(FlagsTest, MistakesNameTheFlag) {
  for (const std::vector<const char*>& arguments : {std::vector<const char*>{"--sockets", "a"},
                                                    {"--socket"},
                                                    {"--socket="},
                                                    {"a"},
                                                    {"--socket", "a", "--socket", "b"},
                                                    {"--help=1"}}) {
    const absl::Status status = Parse(arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments[0];
  }
  EXPECT_NE(Message(Parse({"--sockets", "a"})).find("--sockets"), std::string::npos);
}

TEST_F(FlagsTest, DaemonHasItsOwnFlagsBesideThoseOfEveryDaemon) {
  DaemonFlags flags;
  std::optional<std::string> model;
  const std::array own = {ValueFlag{"--model", &model}};
  const std::vector<const char*> arguments = {"--model=m", "--config", "c", "--print-config"};
  EXPECT_TRUE(ParseDaemonFlags(arguments, own, flags).ok());
  EXPECT_EQ(model, "m");
  EXPECT_EQ(flags.config_path, "c");
  EXPECT_TRUE(flags.print_config);
  EXPECT_FALSE(flags.help);
}

}  // namespace
}  // namespace cairn
