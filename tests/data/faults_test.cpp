// `data build` on a disk that fails at every operation.
#include "data/build.h"
#include "support/every_fault.h"
#include "support/temp_folder.h"

namespace thimble::faults_test {
namespace {

std::string documents(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("Document {} says {}.\n<|endoftext|>\n", i, i * i);
  return text;
}

class BuildFaults : public testing::Test {
 protected:
  BuildFaults() { request_.inputs = {input_.write("text.txt", documents(12)).string()}; }

  FaultyWriting writing(int every) {
    return {.folder = output_.path(),
            .write = [this](FileOps& ops) { build(ops); },
            .again =
                [this](FileOps& ops) {  // after a tolerated fault, the first build may be complete
                  BuildRequest request = request_;
                  if (request.if_built == IfBuilt::refuse) request.if_built = IfBuilt::reuse;
                  build_dataset(request, ops, Log::nowhere(), ProgressOutput::nowhere(), nullptr);
                },
            .named = "set",
            .may_stay = {"/.build.json", "/.lock", "/.digests"},
            .every = every,
            .power_states = 4};
  }
  void build(FileOps& ops) const {
    build_dataset(request_, ops, Log::nowhere(), ProgressOutput::nowhere(), nullptr);
  }

  TempFolder input_, output_;
  BuildRequest request_ = {.val_fraction = 0.2,
                           .tokenizer = load_tokenizer("bytes"),
                           .folder = output_ / "set",
                           .dedup = true,
                           .shard_tokens = 150};
};

// The faults hit shards, journal, digests, tokenizer and manifest.
TEST_F(BuildFaults, BuildResumesAfterAnyFault) {
  expect_survives_every_fault(writing(3));
}

TEST_F(BuildFaults, ReplacingBuildResumesAfterAnyFault) {
  request_.if_built = IfBuilt::replace;
  PosixFileOps ops;
  build(ops);
  request_.inputs = {input_.write("other.txt", documents(9)).string()};
  expect_survives_every_fault(writing(7));
}

TEST_F(BuildFaults, ShardIsCompleteOrAbsent) {
  expect_survives_every_fault({.folder = output_.path(),
                               .write =
                                   [&](FileOps& ops) {
                                     ShardWriter shard(300);
                                     shard.add(std::vector<TokenId>{1, 2, 299});
                                     shard.write(ops, output_ / "shard.bin", Existing::replace);
                                   },
                               .named = "shard.bin"});
}

}  // namespace
}  // namespace thimble::faults_test
