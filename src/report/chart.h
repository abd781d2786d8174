// A chart as SVG: curves over a grid with labelled axes.
//
// One drawing serves two frames. Inside it, x is given in percent and curves lie in an inner picture that is stretched,
// so that a page can make it as wide as there is room while texts and lines keep their size.
//
//   chart_html   for a page: a <figure> with title, legend and the values for web/page.html's script to show
//   chart_svg    a file of its own, light or dark as its reader wishes
#pragma once

#include <string>
#include <vector>

#include "report/curve.h"

namespace thimble {

inline constexpr int kChartColours = 6, kChartDashes = 4;  // together: so many curves can be told apart

struct ChartSeries {
  std::string name;
  Curve curve;
  int style = 0;       // colour style % 6, dashes style / 6
  bool faint = false;  // in the background: what was smoothed
  bool dots = false;   // a mark at each point
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string now = {};  // the latest figure, shown beside the title; empty: none
  std::vector<ChartSeries> series = {};
  bool logarithmic = false, from_zero = false;  // y
  bool legend = false;
};

std::string chart_html(const Chart& chart, int height);

struct SvgSize {
  int width = 760, height = 420;
};
std::string chart_svg(const Chart& chart, SvgSize size);

}  // namespace thimble
