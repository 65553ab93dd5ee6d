// StopText watches a stream of text for stop texts and lets through only what comes before the
// first of them: a piece that might still become a stop text is held back until it is clear. The
// first is the one that is complete first, and of those that end together the longest: so the
// result does not depend on how the text is cut into pieces. Texts and pieces of whole UTF-8
// characters come out as whole characters.
//
// Threading:  one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cairn::compute {

class StopText {
 public:
  // Empty texts are ignored.
  explicit StopText(std::vector<std::string> stops);

  // What may be shown now that `piece` came. Nothing after a match.
  std::string Append(std::string_view piece);
  // What was held back, at the end of a text without a match.
  std::string Finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace cairn::compute
