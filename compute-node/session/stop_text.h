// StopText watches a stream of text for stop texts and lets through only what comes before the
// first of them: a piece that might still become a stop text is held back until it is clear.
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
