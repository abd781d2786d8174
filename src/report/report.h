// RUN/report.html: curves, samples, diagnosis, data, machine, command and settings of a run.
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

// HTML of each section, with its id. The dashboard sends the sections that changed.
using Sections = std::vector<std::pair<std::string, std::string>>;

// web/page.html filled with sections; used by reports, plots and the dashboard.
struct Page {
  std::string title;  // not escaped
  Sections sections;
  bool live = false;  // the page updates itself from /events
  // CSP nonce of script and style. If empty, a digest of the content, which the content itself
  // cannot contain.
  std::string nonce = {};
};

std::string page_html(const Page& page);

struct ReportOptions {
  std::optional<double> smoothing = {};  // for per-step metrics; nullopt: automatic
  bool running = false;                  // training is in progress: show the progress
};

Sections report_sections(const RunData& run, const ReportOptions& options = {});
std::string report_html(const RunData& run, const ReportOptions& options = {});

// Writes RUN/report.html, replacing an existing one, and returns its path.
std::filesystem::path write_report(FileOps& ops, const std::filesystem::path& run,
                                   const ReportOptions& options = {});
std::filesystem::path write_report(FileOps& ops, const RunData& run, const ReportOptions& options = {});

// Escapes text for HTML and XML, both between tags and inside quoted attributes. Samples, prompts
// and file names are untrusted, so all text in a page must be escaped. Invalid UTF-8 and control
// characters other than tab and newline become U+FFFD.
std::string escaped(std::string_view text);

// Replaces each @name@ in `text` with its value, in one pass: values are not expanded again.
std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values);

// <pre> with the words of a command line; lines break between words.
std::string command_html(std::string_view command);

// <tr><th>label</th><td>value</td></tr>, both escaped.
std::string table_row(std::string_view label, std::string_view value);

}  // namespace thimble
