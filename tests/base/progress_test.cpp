#include "base/progress.h"

#include "base/table.h"

namespace thimble {
namespace {

struct Screen {
  std::string written;
  double now = 100;

  ProgressOutput output(bool terminal, int width = 80) {
    return {.enabled = true,
            .terminal = terminal,
            .width = width,
            .write = [this](std::string_view text) { written += text; },
            .seconds = [this] { return now; }};
  }
};

TEST(ProgressBar, ShowsNothingForQuickWork) {
  Screen screen;
  {
    ProgressBar bar(screen.output(true), "packing", "bytes", 100);
    screen.now += 0.9;
    bar.update(100);
  }
  EXPECT_EQ(screen.written, "");
}

TEST(ProgressBar, RedrawsAndRemovesOneLineOnATerminal) {
  Screen screen;
  {
    ProgressBar bar(screen.output(true), "training", "tokens", 1000);
    screen.now += 2;
    bar.update(500, {"loss 3.21"});
    EXPECT_NE(screen.written.find("50%  250 tokens/s  ETA 2.00 s  loss 3.21"), std::string::npos)
        << screen.written;
    EXPECT_NE(screen.written.find("██"), std::string::npos);
    const std::size_t drawn = screen.written.size();
    screen.now += 0.05;
    bar.update(510);
    EXPECT_EQ(screen.written.size(), drawn) << "at most ten redraws per second";
  }
  EXPECT_TRUE(screen.written.ends_with("\r\x1b[K"));
  EXPECT_EQ(screen.written.find('\n'), std::string::npos);
}

TEST(ProgressBar, IsNeverWiderThanTheTerminal) {
  for (int width = 45; width < 120; ++width) {
    Screen screen;
    ProgressBar bar(screen.output(true, width), "training", "tokens", 3);
    screen.now += 2;
    bar.update(1);
    std::string line = screen.written.substr(1, screen.written.size() - 4);
    EXPECT_LT(display_width(line), static_cast<std::size_t>(width)) << line;
  }
}

TEST(ProgressBar, OmitsNotesThatDoNotFitTheTerminal) {
  const std::vector<std::string> notes = {"loss 2.3104", "1.832 bpb", "lr 0.0120", "memory 412 MiB"};
  for (int width = 45; width < 140; ++width) {
    Screen screen;
    ProgressBar bar(screen.output(true, width), "training", "steps", 3);
    screen.now += 2;
    bar.update(1, notes);
    const std::string line = screen.written.substr(1, screen.written.size() - 4);
    EXPECT_LT(display_width(line), static_cast<std::size_t>(width)) << line;
    EXPECT_EQ(line.find("loss 2.3104") != std::string::npos, width >= 53) << width << line;
    EXPECT_TRUE(width <= 100 || line.find("memory 412 MiB") != std::string::npos) << width << line;
  }
}

TEST(ProgressBar, EarlierWorkDoesNotCountForTheRate) {
  Screen screen;
  ProgressBar bar(screen.output(true), "training", "steps", 1000);
  bar.start_at(900);
  bar.expect(950);
  screen.now += 2;
  bar.update(910);
  EXPECT_NE(screen.written.find(" 96%  5 steps/s  ETA 8.00 s"), std::string::npos) << screen.written;
}

TEST(ProgressBar, PrintsPlainLinesWithoutATerminal) {
  Screen screen;
  ProgressBar bar(screen.output(false), "reading", "bytes", 0);
  for (int second = 0; second < 25; ++second) {
    screen.now += 1;
    bar.advance(1 << 20);
  }
  EXPECT_EQ(screen.written, "reading 10.0 MiB  1.00 MiB/s\nreading 20.0 MiB  1.00 MiB/s\n");
}

}  // namespace
}  // namespace thimble
