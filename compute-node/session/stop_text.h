// StopText watches a stream of text for stop texts and lets through only what comes before the
// first of them: a piece that might still become a stop text is held back until it is clear. The
// first is the one that is complete first, and of those that end together the longest: so the
// result does not depend on how the text is cut into pieces. Texts and pieces of whole UTF-8
// characters come out as whole characters.
//
// Some tokens have a name that is not shown, as <|im_start|>. A stop text is found in the text that
// is shown, and also in the text with the names in it; names never come out.
//
// Limits:     what is held back is shorter than a stop text, not counting names.
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
  // The same for a token that is not shown by its name but as `piece`, which may be empty.
  std::string AppendNamed(std::string_view name, std::string_view piece);
  // What was held back, at the end of a text without a match.
  std::string Finish();
  bool matched() const { return !match_.empty(); }
  // The stop text that was found; empty: none yet.
  const std::string& match() const { return match_; }

 private:
  enum class Part : char { kBoth, kName, kShown };
  struct View;

  void Hold(std::string_view bytes, Part part);
  View ViewWithout(Part part) const;
  std::string TakeShown(std::size_t count);
  std::string Advance();

  std::vector<std::string> stops_;
  std::string held_;
  std::vector<Part> parts_;  // of each byte of held_
  std::string match_;
};

}  // namespace cairn::compute
