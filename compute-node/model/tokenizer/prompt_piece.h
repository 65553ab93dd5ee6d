// A prompt in pieces, so that what a template writes and what a user wrote stay apart: special
// tokens are looked for in markup only.
#pragma once

#include <string>

namespace cairn::compute {

struct PromptPiece {
  enum class Kind {
    kText,    // from outside: "<|im_end|>" in it is text
    kMarkup,  // from a template: the names of special tokens in it are those tokens
    kBos,     // the vocabulary's beginning-of-text token, if it has one
    kEos,     // its end-of-text token, if it has one
  };

  Kind kind = Kind::kText;
  std::string text = {};  // empty for kBos and kEos
};

}  // namespace cairn::compute
