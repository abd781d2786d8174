// A progress bar with rate and ETA, for long operations.
//
// On a terminal it is one line, redrawn at most ten times a second and removed when done. Elsewhere
// it is a plain line every ten seconds. Nothing is shown during the first second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// The output and the clock of progress bars: stderr and the steady clock in the binary, fakes in
// tests.
struct ProgressOutput {
  bool enabled = false;
  bool terminal = false;
  int width = 80;
  std::function<void(std::string_view)> write;
  std::function<double()> seconds;

  static ProgressOutput to_stderr();  // detects whether stderr is a terminal, and its width
  static ProgressOutput nowhere() { return {}; }
};

class ProgressBar {
 public:
  // unit: what is counted ("tokens"); "bytes" is shown in MiB. total 0: unknown, so no bar and no
  // ETA.
  ProgressBar(ProgressOutput output, std::string title, std::string unit, std::uint64_t total);
  ~ProgressBar();  // removes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Sets the work done by an earlier process. It counts as progress but not for the rate.
  void start_at(std::uint64_t done) { done_ = before_ = done; }
  void expect(std::uint64_t total) { total_ = total; }  // for totals that become known during the work
  void advance(std::uint64_t amount) { update(done_ + amount); }
  void clear();  // call before printing anything else; the next update draws the line again
  // notes: shown at the end of the line ("loss 3.21"), in order; on a terminal, as many as fit.
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
