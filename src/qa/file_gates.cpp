#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "base/table.h"
#include "formats/artifact_keys.h"
#include "formats/safetensors.h"
#include "infer/end_ids.h"
#include "qa/model_facts.h"
#include "qa/round_trip.h"
#include "qa/subject.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

// Opening read the whole file and checked its digests, sizes and shapes; what is left is to say what that proves.
GateOutcome integrity_gate(Subject& subject) {
  const ModelFile& file = subject.file;
  const std::string read = fmt::format("{} tensors, {} parameters", file.tensors.size(),
                                       with_commas(ParamTable(file.config.model).count()));
  if (file.format == "thimble") return passed("{}: the digest of the file is right", read);
  if (std::ranges::count(file.tensors, kDigestTensor, &StoredTensor::name) > 0)
    return passed("{}: the digests of the header and of every tensor are right", read);
  return passed("{}: read in full; the file carries no digests", read);
}

// Files of ours carry all of these; of others' formats the reader has refused what it could not find.
GateOutcome metadata_gate(Subject& subject) {
  std::vector<std::string> missing;
  const auto require = [&](std::string_view key) {
    if (!subject.find_metadata(key)) missing.emplace_back(key);
  };
  const ModelFile& file = subject.file;
  if (file.format == "safetensors" || file.format == "thimble") {
    require(kConfigKey);
    require(kVersionKey);
  }
  if (file.format == "thimble") require(kRuleKey);
  if (file.architecture.empty()) missing.emplace_back("architecture");
  if (const Tokenizer* tokenizer = subject.tokenizer())
    if (end_ids(*tokenizer).empty()) missing.emplace_back("an id that begins or ends a text (bos, eos)");
  if (!missing.empty()) return failed("missing: {}", joined(missing, ", "));
  const ModelConfig& c = file.config.model;
  return passed("{}, {} x {}, context {}, vocabulary {}", file.architecture, c.layers, c.dim, c.context,
                c.vocab_size);
}

GateOutcome tokenizer_gate(Subject& subject) {
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model has none: its tokens mean nothing");
  const RoundTrip done = check_round_trip(*tokenizer);
  return passed("{}: {} ids and {} random texts come back{}", name_of(tokenizer->kind()),
                with_commas(done.ids), with_commas(done.texts),
                done.exact ? "" : ", as far as it does not normalise them");
}

GateOutcome tensors_gate(Subject& subject) {
  const ParamTable table(subject.file.config.model);
  for (const Param& param : table.all()) {
    const TensorStats stats = stats_of(values_of(subject.file, param));
    if (stats.not_finite > 0)
      return failed("{}: {} of {} values are not finite", param.name, with_commas(stats.not_finite),
                    with_commas(stats.count));
    // A bias of zeros is a choice, and a gate of zeros lets half of it through; a matrix or a norm of zeros is dead.
    const bool may_be_zero =
        param.name.ends_with(".bias") || param.role == Role::skip_gates || param.role == Role::smear_gate;
    if (stats.all_zero() && !may_be_zero) return failed("{} is all zeros", param.name);
    const bool matrix = param.rows > 1 && param.cols > 1 && !param.control;
    if (matrix && stats.deviation == 0) return failed("{}: every value is {}", param.name, stats.mean);
  }
  return passed("{} tensors of finite numbers, none dead", table.all().size());
}

GateOutcome chat_gate(Subject& subject) {
  if (subject.file.layout.empty()) return skipped("the model was not trained on chats");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model chats as {}, but has no tokenizer", subject.file.layout);
  const ChatLayout layout = open_chat_layout(subject.file, *tokenizer);
  Conversation turns = {{ChatRole::system, "be kind"}, {ChatRole::user, "hello"}};
  const std::vector<TokenId> prompt = layout.prompt(turns);
  turns.push_back({ChatRole::assistant, "hi"});
  const std::vector<TokenId> whole = layout.conversation(turns);
  if (whole.size() <= prompt.size() || !std::ranges::equal(prompt, std::span(whole).first(prompt.size())))
    return failed("the prompt of a conversation is not how it begins in training");
  if (std::ranges::count(end_ids(*tokenizer), layout.end_id()) == 0)
    return failed("token {} closes a turn, but does not end an answer", layout.end_id());
  // Whoever types the text of a control token must get its letters.
  const std::string typed = tokenizer->token_text(layout.end_id());
  const auto ends = [&](const std::string& content) {
    return std::ranges::count(layout.prompt(Conversation{{ChatRole::user, content}}), layout.end_id());
  };
  if (ends(typed) != ends("x")) return failed("a user who types {} ends the turn", typed);
  return passed("{}: prompts begin conversations, token {} ends answers", layout.text().text(),
                layout.end_id());
}

}  // namespace thimble
