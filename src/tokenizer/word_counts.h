// How often each distinct word occurs. All words lie in one buffer: memory grows with distinct words only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

class WordCounts {
 public:
  WordCounts();

  void add(std::string_view word, std::uint64_t count = 1);
  void add(const WordCounts& other);
  std::size_t size() const { return size_; }

  struct Word {
    std::string_view text;
    std::uint64_t count;
  };
  // In the order of their bytes: the same whoever counted what.
  std::vector<Word> sorted() const;

 private:
  struct Slot {
    std::uint64_t hash = 0, count = 0;  // count 0: free
    std::uint64_t start = 0;
    std::uint32_t bytes = 0;
  };
  Slot& slot_of(std::string_view word, std::uint64_t hash);
  void grow();

  std::vector<Slot> slots_;
  std::string letters_;
  std::size_t size_ = 0;
};

}  // namespace thimble
