// Names of files behind /file.
#include "clients/cairn/typed_path.h"

#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

TEST(TypedPathTest, QuotesAndBackslashesAreThoseOfAShell) {
  EXPECT_EQ(FilePath("/x/plain.txt"), "/x/plain.txt");
  EXPECT_EQ(FilePath("  /x/my file.txt \t"), "/x/my file.txt");
  EXPECT_EQ(FilePath(R"(/x/my\ file.txt )"), "/x/my file.txt");
  EXPECT_EQ(FilePath(R"(/x/a\ \(1\)\ \"b\"\ it\'s\ 5\$\;\&\[x\].txt)"),
            R"(/x/a (1) "b" it's 5$;&[x].txt)");
  EXPECT_EQ(FilePath(R"(/x/back\\slash)"), R"(/x/back\slash)");
  EXPECT_EQ(FilePath(R"("/x/my file.txt")"), "/x/my file.txt");
  EXPECT_EQ(FilePath(R"('/x/my "file" \.txt')"), R"(/x/my "file" \.txt)");
  EXPECT_EQ(FilePath(R"("/x/a \"b\" \$5 \\ \n")"), R"(/x/a "b" $5 \ \n)");
  EXPECT_EQ(FilePath(R"('/x/it'\''s a')"), "/x/it's a");
  EXPECT_EQ(FilePath(R"("/x/my "file.txt)"), "/x/my file.txt");
  EXPECT_EQ(FilePath(R"(/x/ends\ )"), "/x/ends ");
  EXPECT_EQ(FilePath(R"(/x/ends\)"), R"(/x/ends\)");
  EXPECT_EQ(FilePath(R"(/x/it's.txt)"), "/x/it's.txt");
  EXPECT_EQ(FilePath("  "), "");
}

TEST(TypedPathTest, TildeIsTheHomeFolderUnlessItIsQuoted) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  ASSERT_EQ(::setenv("HOME", "/home/mira", 1), 0);
  EXPECT_EQ(FilePath(R"(~/my\ file)"), "/home/mira/my file");
  EXPECT_EQ(FilePath(R"('~/a')"), "~/a");
  EXPECT_EQ(FilePath(R"(\~/a)"), "~/a");
  EXPECT_EQ(FilePath("~mira/a"), "~mira/a");
}

TEST(TypedPathTest, NameThatIsThereCountsAsItStands) {
  const std::string name = testing::TempDir() + R"(bob's and\ eve's.txt)";
  const std::string without = testing::TempDir() + "bobs and\\ eves.txt";
  std::remove(name.c_str());
  std::remove(without.c_str());
  EXPECT_EQ(FilePath(name), without);
  std::ofstream(name).put('x');
  EXPECT_EQ(FilePath(name + " "), name);
  std::ofstream(without).put('x');
  EXPECT_EQ(FilePath(name), without);
  std::remove(name.c_str());
  std::remove(without.c_str());
}

TEST(TypedPathTest, WrittenNamesAreRead) {
  for (const char* name :
       {"/x/plain.txt", "a b (1).txt", R"(a\b\)", R"(it's "x")", "~/a", " a ", "a\\ b", "$x `y`"}) {
    EXPECT_EQ(FilePath(TypedPath(name)), name) << TypedPath(name);
  }
  EXPECT_EQ(TypedPath("/x/my file (1).txt"), "/x/my file (1).txt");
}

}  // namespace
}  // namespace cairn::cli
