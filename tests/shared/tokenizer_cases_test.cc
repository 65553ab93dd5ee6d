// Compares with token ids that a widely used engine gives for the published vocabularies.
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/gguf/gguf.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/tools/random_text.h"
#include "tests/tools/seed.h"
#include "tests/tools/shared_folder.h"
#include "tests/tools/tokenizer_maker.h"

namespace cairn::compute {
namespace {

struct Case {
  std::string text;
  bool special;
  std::vector<std::int32_t> ids;
};

// One line for each case: the text in hexadecimal, whether it is with special tokens, the ids.
std::vector<Case> ReadCases(const std::string& shared, const std::string& vocabulary) {
  const std::string script =
      "import json,sys\n"
      "for line in open(sys.argv[1], encoding=\"utf-8\"):\n"
      "    case = json.loads(line)\n"
      "    for key, special in ((sys.argv[2], 0), (sys.argv[2] + \"/special\", 1)):\n"
      "        if key in case:\n"
      "            print(case[\"text\"].encode().hex() or \"-\", special, *case[key])\n";
  std::istringstream lines(test::CommandOutput("/usr/bin/python3 -c '" + script + "' '" + shared +
                                               "/models/expected/tokenizer_cases.jsonl' " +
                                               vocabulary));
  std::vector<Case> cases;
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string hex;
    Case item;
    fields >> hex >> item.special;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      item.text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    std::int32_t id = 0;
    while (fields >> id) {
      item.ids.push_back(id);
    }
    cases.push_back(item);
  }
  return cases;
}

class TokenizerCasesTest : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerCasesTest, AgreesOnEveryCase) {
  const std::string shared = test::SharedFolder();
  auto file = GgufFile::Open(shared + "/models/vocab/" + GetParam() + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<Case> cases = ReadCases(shared, GetParam());
  EXPECT_GE(cases.size(), 80U);
  for (const Case& item : cases) {
    const EncodeOptions options{.add_special = item.special, .parse_special = item.special};
    const std::vector<std::int32_t> ids = (*tokenizer)->Encode(item.text, options);
    EXPECT_EQ(ids, item.ids) << "text: '" << item.text << "', special: " << item.special;
    if (!item.special) {
      EXPECT_EQ((*tokenizer)->Decode(ids), item.text);
    }
  }
}

TEST_P(TokenizerCasesTest, HardTextsComeBackAndLongRunsAreQuick) {
  auto file = GgufFile::Open(test::SharedFolder() + "/models/vocab/" + GetParam() + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const EncodeOptions plain{.add_special = false, .parse_special = false};
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 2000; ++round) {
    const std::string text = test::HardText(rng, test::VocabularyText());
    ASSERT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text, plain)), text);
  }
  // Quadratic work would take hours.
  for (const char c : {'a', 'A', ' ', '7', '\n', '<', '\xff'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text, plain)), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerCasesTest,
                         testing::Values("llama-spm", "gpt-2", "llama-bpe", "qwen2"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name) {
                             c = c == '-' ? '_' : c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace cairn::compute
