// RUN/report.html: a run to look at. Curves, what it said, what limits it, its data, machine and settings.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/file_ops.h"
#include "report/page.h"
#include "report/run_data.h"

namespace thimble {

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

}  // namespace thimble
