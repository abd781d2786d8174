#include "report/plot.h"

#include <sstream>

#include "base/table.h"

namespace thimble {
namespace {

Chart falling(int runs) {
  Chart chart{.title = "loss", .x_label = "steps"};
  for (int run = 0; run < runs; ++run) {
    ChartSeries series{.name = "run " + std::to_string(run), .curve = {}, .style = run};
    for (int i = 1; i <= 100; ++i) series.curve.push_back({double(i), 10.0 / i + run});
    chart.series.push_back(series);
  }
  return chart;
}

TEST(TextPlot, LinesFitTheWidth) {
  for (const std::size_t width : {24, 40, 80, 133}) {
    std::istringstream lines(text_plot(falling(2), {.width = width, .height = 10}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), width) << line;
  }
}

TEST(TextPlot, DrawsAFallingCurveFromUpperLeftToLowerRight) {
  const std::string text = text_plot(falling(1), {.width = 60, .height = 10});
  std::vector<std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 12u) << text;  // title, ten rows, labels
  EXPECT_LT(display_width(rows[1]), 16u) << text;
  EXPECT_GT(display_width(rows[10]), 50u) << text;
  EXPECT_NE(rows[0].find("loss, over steps"), std::string::npos);
  EXPECT_NE(rows[11].find("100"), std::string::npos);
}

TEST(TextPlot, DrawsCurvesWithLettersWithoutColour) {
  const std::string plain = text_plot(falling(2), {.width = 60});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(plain.find("bbb"), std::string::npos);
  EXPECT_NE(plain.find("a run 0"), std::string::npos);
  const std::string coloured = text_plot(falling(2), {.width = 60, .colour = true});
  EXPECT_NE(coloured.find("\x1b[34m"), std::string::npos);
  EXPECT_NE(coloured.find("\x1b[31m"), std::string::npos);
}

TEST(TextPlot, DrawsASinglePoint) {
  Chart chart{.title = "loss", .x_label = "steps"};
  chart.series = {{.name = "a", .curve = {{0, 5}}}};
  EXPECT_NE(text_plot(chart, {}).find("5"), std::string::npos);
}

}  // namespace
}  // namespace thimble
