#include "cli/line_editor.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "cli/libedit_lines.h"

namespace thimble {

namespace {

constexpr std::size_t kLongestLine = 16 << 20;

class PlainLines : public LineEditor {
 public:
  PlainLines(bool shows_prompt, const Interrupt& interrupt)
      : shows_prompt_(shows_prompt), interrupt_(interrupt) {}

  Line read(std::string_view prompt) override {
    if (shows_prompt_) show(prompt);
    for (;;) {
      if (const std::size_t end = waiting_.find('\n', searched_); end != std::string::npos)
        return take(end, end + 1);
      searched_ = waiting_.size();
      check(waiting_.size() <= kLongestLine, "a line of more than {} bytes", kLongestLine);
      std::array<char, 65536> block;
      const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
      if (count > 0)
        waiting_.append(block.data(), static_cast<std::size_t>(count));
      else if (count == 0)
        return waiting_.empty() ? Line{} : take(waiting_.size(), waiting_.size());
      else if (errno != EINTR)
        fail("cannot read standard input: {}", std::strerror(errno));
      else if (interrupt_.asked())
        return {LineEnd::interrupted};
    }
  }

 private:
  static void show(std::string_view prompt) {
    if (write(STDOUT_FILENO, prompt.data(), prompt.size()) < 0) return;  // a prompt is no result
  }

  Line take(std::size_t end, std::size_t next) {
    if (end > 0 && waiting_[end - 1] == '\r') --end;
    Line line{LineEnd::line, waiting_.substr(0, end)};
    waiting_.erase(0, next);
    searched_ = 0;
    return line;
  }

  bool shows_prompt_;
  const Interrupt& interrupt_;
  std::string waiting_;
  std::size_t searched_ = 0;  // bytes of it that hold no end of a line
};

}  // namespace

std::unique_ptr<LineEditor> make_plain_lines(bool shows_prompt, const Interrupt& interrupt) {
  return std::make_unique<PlainLines>(shows_prompt, interrupt);
}

std::unique_ptr<LineEditor> make_line_editor(const EditorOptions& options, const Interrupt& interrupt) {
#ifdef THIMBLE_LIBEDIT
  if (auto lines = make_libedit_lines(options, interrupt)) return lines;
#endif
  (void)options;
  return make_plain_lines(true, interrupt);
}

}  // namespace thimble
