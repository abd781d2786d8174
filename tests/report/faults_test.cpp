// Writes reports and event files with a fault injected at every disk operation.
#include "report/report.h"
#include "report/run_files.h"
#include "report/tensorboard.h"
#include "support/every_fault.h"

namespace thimble {
namespace {

TEST(ReportFaults, LeaveTheOldOrTheNewReportIntact) {
  const TempFolder folder;
  const std::filesystem::path run = write_run(folder, {.steps = 12});
  folder.write("run/report.html", "an older one");
  expect_survives_every_fault({.folder = folder.path(),
                               .write = [&](FileOps& ops) { write_report(ops, run); },
                               .named = "report.html"});
}

TEST(TensorBoardFaults, LeaveEarlierRecordsIntact) {
  const TempFolder folder;
  const auto write = [&](FileOps& ops) {
    TensorBoardWriter writer(ops, folder.path(), small_config({}).optimizer, [] { return 1000.0; });
    StepReport report;
    for (report.step = 1; report.step <= 3; ++report.step) writer.step(report);
  };
  const auto content = [&] {
    const auto files = folder.files();
    return files.empty() ? std::string() : folder.read(files.at(0));
  };
  std::string complete;
  expect_survives_every_fault({.folder = folder.path(),
                               .write =
                                   [&](FileOps& ops) {
                                     write(ops);
                                     complete = content();
                                   },
                               .named = "events.out.tfevents.",
                               .grows = {"events.out.tfevents."},
                               .expect_opens = [&] {  // unwritten data is missing or zero
                                 const std::string found = content();
                                 ASSERT_LE(found.size(), complete.size());
                                 for (std::size_t i = 0; i < found.size(); ++i)
                                   ASSERT_TRUE(found[i] == complete[i] || found[i] == 0) << i;
                               }});
  EXPECT_EQ(content(), complete);
}

}  // namespace
}  // namespace thimble
