// PreTokenizer cuts a text into the pieces that byte-level BPE merges within: words, numbers,
// punctuation, white space. Which cuts is a property of the model (tokenizer.ggml.pre); each is one
// or several regular expressions, run with PCRE2 one after another on the pieces that the one
// before left.
//
// Threading:  immutable; safe from any thread.
// Errors:     UNIMPLEMENTED for a name that Cairn does not know, naming those it does.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace cairn::compute {

class PreTokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Gives the pieces of `text` to `take`, in order, until it answers false; together they are all
  // of it. Stretches that are not UTF-8 become pieces of their own.
  void ForEachPiece(std::string_view text,
                    const std::function<bool(std::string_view piece)>& take) const;

  // Whether a piece that is a token as a whole is taken as it is, without merging.
  bool ignores_merges() const { return ignores_merges_; }
  // Whether the model family puts its beginning-of-text token in front unless the file says
  // otherwise.
  bool adds_bos() const { return adds_bos_; }

 private:
  class Regex;

  PreTokenizer();
  // By the expressions from `first` on. False: `take` did.
  bool Split(std::string_view text, std::size_t first,
             const std::function<bool(std::string_view piece)>& take) const;

  std::vector<std::unique_ptr<const Regex>> regexes_;
  bool ignores_merges_ = false;
  bool adds_bos_ = false;
};

}  // namespace cairn::compute
