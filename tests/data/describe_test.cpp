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

TEST(Describe, ReportsHowMuchIsValidationAndWhy) {
  Manifest manifest;
  manifest.settings = Json::object().set("val_inputs", 0).set("val_cut", 3);
  manifest.train = {.documents = 3, .tokens = 1, .bytes = 847'800, .shards = {}};
  manifest.val = {.documents = 3, .tokens = 1, .bytes = 94'200, .shards = {}};
  EXPECT_EQ(validation_text(manifest),
            "validation: 94.2 kB, 10 % of the text: the end of each of 3 documents");
  manifest.settings.set("val_cut", 0);
  EXPECT_TRUE(validation_text(manifest).ends_with(": 3 of 6 documents")) << validation_text(manifest);
  manifest.settings.set("val_cut", 1);
  EXPECT_TRUE(validation_text(manifest).ends_with(": the end of one document and 2 of 4 others"))
      << validation_text(manifest);
  manifest.val.bytes = 900;
  EXPECT_TRUE(validation_text(manifest).starts_with("validation: 900 B, ")) << validation_text(manifest);
  manifest.val.tokens = 0;
  EXPECT_EQ(validation_text(manifest), "validation: none");
}

}  // namespace
}  // namespace thimble
