// The counts of `data info`.
#include "data/describe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(Describe, CountsOnlyDocumentsThatABuildKeeps) {
  TempFolder folder;
  const std::string user = R"({"role": "user", "content": "what"})",
                    answer = R"({"role": "assistant", "content": "that"})";
  const std::string chats =
      folder.write("a.jsonl", fmt::format("[{0},{1}]\n[{0}]\nnonsense\n[{0},{1},{0}]\n", user, answer))
          .string();
  const DataDescription found =
      describe_data(chats, {.tokenizer = load_tokenizer("bytes:chat")}, ProgressOutput::nowhere());
  EXPECT_EQ(found.form, "chat");
  EXPECT_EQ(found.bad, 1u);
  EXPECT_EQ(found.without_answer, 1u);
  EXPECT_EQ(found.with_turns_cut, 1u);
  ASSERT_EQ(found.splits.size(), 1u);
  EXPECT_EQ(found.splits[0].documents, 2u);
  EXPECT_EQ(found.splits[0].bytes, 16u);
  EXPECT_EQ(found.splits[0].tokens, 16u + 2 * (1 + 2 * 2));  // bos; role and <end_turn> of 2 turns
  EXPECT_EQ(found.first_document, "user: what\nassistant: that\n");
}

}  // namespace
}  // namespace thimble
