// Tokenizers that are learned from the training data.
#include "train/train_data.h"
#include "base/error.h"
#include "tokenizer/tokenizer_json.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

TEST(TokenizerSpec, ParsesAKindAndANumber) {
  const auto spec = TokenizerSpec::parse("bpe:512");
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->kind, TokenizerKind::bpe);
  EXPECT_EQ(spec->vocab_size, 512);
  EXPECT_EQ(TokenizerSpec::parse("bpe:4k")->vocab_size, 4000);
  EXPECT_EQ(TokenizerSpec::parse("sentencepiece:1024")->kind, TokenizerKind::sentencepiece);
  for (const char* other : {"bytes", "bytes:chat", "C:/tokenizer.json", "tokenizer.json"})
    EXPECT_FALSE(TokenizerSpec::parse(other)) << other;
  for (const char* wrong : {"bpe:", "bpe:0", "bpe:-3", "bpe:many", "sentencepiece:99999999"})
    EXPECT_THROW(TokenizerSpec::parse(wrong), Error) << wrong;
}

class Learned : public TinyRun {};

TEST_F(Learned, ATokenizerForChatsIsTrainedOnContentsNotOnJson) {
  const Interrupt interrupt;
  const auto learn = [&](const char* spec, const char* file, DataKind kind) {
    return learn_tokenizer(*TokenizerSpec::parse(spec), {.data = folder_ / file, .kind = kind},
                           ProgressOutput::nowhere(), interrupt);
  };
  const auto chats = learn("bpe:280", "chats.jsonl", DataKind::chat);
  EXPECT_LE(chats->vocab_size(), 280);
  EXPECT_TRUE(chats->id_of("<assistant>"));
  EXPECT_FALSE(chats->id_of("messages"));
  std::vector<TokenId> ids;
  chats->encode("it is", ids);
  EXPECT_LE(ids.size(), 3u) << "words of the answers should be tokens";
  const auto text = learn("bpe:280", "text.txt", DataKind::text);
  EXPECT_FALSE(text->id_of("<assistant>"));
  EXPECT_EQ(text->vocab_size(), 280);
}

}  // namespace
}  // namespace thimble
