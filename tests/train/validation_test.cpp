#include "train/validation.h"

#include <fstream>

#include "base/json.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Samples : public TinyRun {
 protected:
  std::vector<Json> said_in(const std::string& run) const {
    std::vector<Json> events;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (Json event = parse_json(line, "line"); event.at("event").as_string() == "sample")
        events.push_back(std::move(event));
    return events;
  }
};

TEST_F(Samples, AreSaidAtEveryValidationAndChangeNothing) {
  TrainRequest with = request("with", {"swa_start=0.9", "swa_every=2"});
  with.samples = 3;
  const TrainResult result = run(with);
  EXPECT_EQ(said_in("with").size(), 3u * 5) << "steps 0, 6, 12, 18 and 20";
  EXPECT_EQ(run(request("without", {"swa_start=0.9", "swa_every=2"})).val_loss, result.val_loss);
  EXPECT_EQ(last("with"), last("without"));
}

TEST_F(Samples, OfAResumedRunAreThoseOfOneThatWasNotStopped) {
  TrainRequest straight = request("straight"), first = request("resumed"), second = resumed("resumed");
  for (TrainRequest* each : {&straight, &first, &second}) each->samples = 2;
  run(straight);
  run_until(first, 9);
  run(second);
  EXPECT_EQ(said_in("resumed"), said_in("straight"));
}

TEST_F(Samples, OfChatsAnswerQuestionsOfTheValidationSet) {
  TrainRequest chats = chat_request("chats", {"context=64", "batch_tokens=128"});
  chats.samples = 2;
  run(chats);
  const std::vector<Json> said = said_in("chats");
  ASSERT_FALSE(said.empty());
  const std::string& question = said.front().at("prompt").as_string();
  EXPECT_TRUE(question.starts_with("<user>what is ")) << question;
  EXPECT_TRUE(question.ends_with("?<end_turn><assistant>")) << question;
  EXPECT_NE(question, said[1].at("prompt").as_string());
}

}  // namespace
}  // namespace thimble
