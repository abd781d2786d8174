// The normalizer table inside a SentencePiece model, compared with the library's own.
#include "tokenizer/sentencepiece.h"

#include "base/error.h"
#include "data/text_files.h"
#include "support/temp_folder.h"

namespace thimble::sentencepiece_normalizer_test {
namespace {

std::string trained(const std::string& normalization) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("the cat {} sat on mat {}\n", i, i * 7);
  TextSource source({folder.write("text.txt", text)}, {});
  return train_sentencepiece(source, {.vocab_size = 300, .normalization = normalization});
}

TEST(StandardNormalizer, TableOfTheNameIsTheTableInTheModel) {
  const std::string model = trained("nmt_nfkc");
  EXPECT_EQ(standard_normalizer_in(model), "nmt_nfkc");
  const std::string table = standard_normalizer_table("nmt_nfkc");
  EXPECT_GT(table.size(), 200'000u);
  EXPECT_NE(model.find(table), model.npos);
}

TEST(StandardNormalizer, NamesHaveDifferentTables) {
  EXPECT_NE(standard_normalizer_table("nfkc"), standard_normalizer_table("nmt_nfkc"));
  EXPECT_NE(standard_normalizer_table("nfkc"), standard_normalizer_table("nfkc_cf"));
  EXPECT_THROW(standard_normalizer_table("user_defined"), Error);
  EXPECT_THROW(standard_normalizer_table(""), Error);
}

TEST(StandardNormalizer, IsNotFoundInOtherModels) {
  EXPECT_FALSE(standard_normalizer_in(trained("identity")));
  EXPECT_FALSE(standard_normalizer_in(""));
  EXPECT_FALSE(standard_normalizer_in("{\"version\": \"1.0\"}"));
}

}  // namespace
}  // namespace thimble::sentencepiece_normalizer_test
