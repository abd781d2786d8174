// Curves in a terminal: braille dots, eight to a character. Where several curves cannot be told apart by colour they
// are drawn as letters.
#pragma once

#include <string>
#include <vector>

#include "report/chart.h"

namespace thimble {

struct TextPlotOptions {
  std::size_t width = 80, height = 14;  // characters; no line is wider, if 24 are given at least
  bool colour = false;                  // escape sequences may be used
};

// Title, the plot with its axes, and a legend where there is more than one curve. Names are shown as they are: foreign
// ones are the caller's to clean.
std::string text_plot(const Chart& chart, const TextPlotOptions& options);

}  // namespace thimble
