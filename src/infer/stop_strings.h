// Ends a text before the first stop string that is complete, however its pieces are cut.
//
// "First" is the one whose last byte comes first; of those that end at the same byte, the longest. What could still
// become a stop string is held back, so no piece of one is ever let through.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // More text; returns what may be shown now. Nothing after a stop.
  std::string push(std::string_view piece);
  // The text is over: returns what was held back.
  std::string finish();

  const std::optional<std::string>& stopped_by() const { return stopped_by_; }

 private:
  std::size_t held_back() const;

  std::vector<std::string> strings_;
  std::string waiting_;
  std::optional<std::string> stopped_by_;
};

}  // namespace thimble
