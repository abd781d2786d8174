#include "infer/stop_strings.h"

#include <algorithm>
#include <utility>

namespace thimble {

std::string StopStrings::push(std::string_view piece) {
  if (stopped_by_) return {};
  waiting_ += piece;
  // Whatever begins in text that was shown cannot be complete now: it would have been held back.
  std::size_t first_end = std::string::npos;
  for (const std::string& string : strings_) {
    const std::size_t begin = waiting_.find(string);
    if (begin == std::string::npos) continue;
    const std::size_t end = begin + string.size();
    if (end > first_end || (end == first_end && string.size() <= stopped_by_->size())) continue;
    first_end = end;
    stopped_by_ = string;
  }
  const std::size_t shown = stopped_by_ ? first_end - stopped_by_->size() : waiting_.size() - held_back();
  std::string text = waiting_.substr(0, shown);
  waiting_.erase(0, stopped_by_ ? waiting_.size() : shown);
  return text;
}

std::string StopStrings::finish() {
  return std::exchange(waiting_, {});
}

// The longest end of the text with which some stop string begins.
std::size_t StopStrings::held_back() const {
  std::size_t longest = 0;
  const std::string_view text = waiting_;
  for (const std::string& string : strings_)
    for (std::size_t size = std::min(text.size(), string.size() - 1); size > longest; --size)
      if (text.ends_with(std::string_view(string).substr(0, size))) longest = size;
  return longest;
}

}  // namespace thimble
