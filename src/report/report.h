// RUN/report.html: a run to look at. Curves, what it said, what limits it, its data, machine and settings.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "report/run_data.h"

namespace thimble {

// The page that reports, plots and the dashboard share: web/page.html with something in it.
// HTML, by the id of its section. Sections are what the dashboard exchanges when they change.
using Sections = std::vector<std::pair<std::string, std::string>>;

struct Page {
  std::string title;  // not escaped yet
  Sections sections;
  bool live = false;  // listens to the server that sent it
  std::string nonce =
      {};  // of script and style; empty: one made of the content, which nothing inside can know
};

std::string page_html(const Page& page);

struct ReportOptions {
  std::optional<double> smoothing = {};  // of what there is one of a step; nothing: what suits
  bool running = false;                  // training goes on: shows how far it is
};

Sections report_sections(const RunData& run, const ReportOptions& options = {});
std::string report_html(const RunData& run, const ReportOptions& options = {});

// Writes RUN/report.html, in place of an older one, and returns its path.
std::filesystem::path write_report(FileOps& ops, const std::filesystem::path& run,
                                   const ReportOptions& options = {});
std::filesystem::path write_report(FileOps& ops, const RunData& run, const ReportOptions& options = {});

// Text into HTML and SVG. Samples, prompts and file names come from anywhere: whatever goes into a page goes through
// escaped().
// Safe between tags and within quotes, of HTML and of XML. Bytes that are no UTF-8 and control characters but tab and
// line end become U+FFFD.
std::string escaped(std::string_view text);

// Replaces each @name@ of `text` by its value, in one pass: what a value holds is never replaced.
std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values);

// <tr><th>label</th><td>value</td></tr>, both escaped.
std::string table_row(std::string_view label, std::string_view value);

}  // namespace thimble
