// Tokenizers for the tests of this folder, built in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "compute-node/model/gguf/gguf.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/tools/gguf_writer.h"
#include "tests/tools/tokenizer_maker.h"

namespace cairn::compute {

using Ids = std::vector<std::int32_t>;
inline constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
inline constexpr EncodeOptions kSpecial{.add_special = true, .parse_special = true};

inline absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const test::GgufWriter& writer) {
  const std::string bytes = writer.ToString();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  CAIRN_RETURN_IF_ERROR(file.status());
  return Tokenizer::FromGguf(**file);
}

inline absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const test::Vocabulary& vocabulary) {
  test::GgufWriter writer;
  test::AddVocabulary(vocabulary, writer);
  return LoadTokenizer(writer);
}

inline std::unique_ptr<Tokenizer> Load(const test::Vocabulary& vocabulary) {
  auto tokenizer = LoadTokenizer(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Three tokens of the control kind and the pieces of "hello world" that the merges below make.
//   0..255 the byte alphabet; 256 "he", 257 "ll", 258 "hell", 259 "hello", 260 "Ġw", 261 "or", 262
//   "Ġwor", 263 "ld", 264 "Ġworld", 265 "<|begin_of_text|>", 266 "<|eot_id|>", 267 "<tool>"
//   (user-defined).
inline test::Vocabulary HelloVocabulary(std::string_view pre) {
  test::Vocabulary out = test::MakeBpeVocabulary(512, pre);
  out.tokens.resize(256);
  out.merges.clear();
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{"h", "e"},
                                                        {"l", "l"},
                                                        {"he", "ll"},
                                                        {"hell", "o"},
                                                        {"\u0120", "w"},
                                                        {"o", "r"},
                                                        {"\u0120w", "or"},
                                                        {"l", "d"},
                                                        {"\u0120wor", "ld"}}) {
    out.merges.push_back(fmt::format("{} {}", left, right));
    out.tokens.push_back(left + right);
  }
  out.kinds.assign(out.tokens.size(), test::kNormalToken);
  out.tokens.insert(out.tokens.end(), {"<|begin_of_text|>", "<|eot_id|>", "<tool>"});
  out.kinds.insert(out.kinds.end(), {test::kControlToken, test::kControlToken, test::kUserToken});
  out.bos_id = 265;
  out.eos_id = 266;
  out.add_bos = true;
  return out;
}

}  // namespace cairn::compute
