// A progress bar with rate and ETA, for anything over two seconds.
//
// On a terminal: one line, redrawn at most ten times a second, removed when done. Elsewhere: a plain line now
// and then (every ten seconds). Nothing is shown in the first second, so quick work stays silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Where progress is drawn and what time it is: stderr and the steady clock in the binary, fakes in tests.
struct ProgressOutput {
  bool enabled = false;
  bool terminal = false;
  int width = 80;
  std::function<void(std::string_view)> write;
  std::function<double()> seconds;

  static ProgressOutput to_stderr();  // looks whether stderr is a terminal, and how wide
  static ProgressOutput nowhere() { return {}; }
};

class ProgressBar {
 public:
  // unit: what is counted ("tokens"); "bytes" prints as MiB. total 0: unknown, no bar and no ETA.
  ProgressBar(ProgressOutput output, std::string title, std::string unit, std::uint64_t total);
  ~ProgressBar();  // removes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Work that was done before, by another process: it counts, but not for the rate.
  void start_at(std::uint64_t done) { done_ = before_ = done; }
  void expect(std::uint64_t total) { total_ = total; }  // where that is known only on the way
  void advance(std::uint64_t amount) { update(done_ + amount); }
  void clear();  // before something else is printed; the next update draws the line again
  // notes: "loss 3.21", shown at the end of the line; on a terminal as many of them, in order, as fit.
  void update(std::uint64_t done, std::vector<std::string> notes = {});

 private:
  std::string line(double elapsed) const;
  void draw(double now);

  ProgressOutput output_;
  std::string title_, unit_;
  std::vector<std::string> notes_;
  std::uint64_t total_, done_ = 0, before_ = 0;
  double started_ = 0, last_drawn_ = 0;
  bool on_screen_ = false;
};

}  // namespace thimble
