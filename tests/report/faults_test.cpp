// What is written beside a run, on a disk that breaks at every operation.
#include "report/report.h"
#include "report/run_files.h"
#include "report/tensorboard.h"
#include "support/every_fault.h"

namespace thimble {
namespace {

TEST(ReportFaults, LeaveTheOldOrTheNewReportWhole) {
  const TempFolder folder;
  const std::filesystem::path run = write_run(folder, {.steps = 12});
  folder.write("run/report.html", "an older one");
  expect_survives_every_fault({.folder = folder.path(),
                               .write = [&](FileOps& ops) { write_report(ops, run); },
                               .named = "report.html"});
}

TEST(TensorBoardFaults, LeaveTheRecordsBefore) {
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
  std::string whole;
  expect_survives_every_fault({.folder = folder.path(),
                               .write =
                                   [&](FileOps& ops) {
                                     write(ops);
                                     whole = content();
                                   },
                               .named = "events.out.tfevents.",
                               .grows = {"events.out.tfevents."},
                               .expect_opens = [&] {  // what the disk did not get to is missing, or zeros
                                 const std::string found = content();
                                 ASSERT_LE(found.size(), whole.size());
                                 for (std::size_t i = 0; i < found.size(); ++i)
                                   ASSERT_TRUE(found[i] == whole[i] || found[i] == 0) << i;
                               }});
  EXPECT_EQ(content(), whole);
}

}  // namespace
}  // namespace thimble
