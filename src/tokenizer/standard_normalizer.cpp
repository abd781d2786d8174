#include "tokenizer/standard_normalizer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "tokenizer/protobuf.h"

namespace thimble {

namespace {

constexpr std::array<std::string_view, 4> kStandardNames = {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"};

struct NormalizerFields {
  std::string_view name, table;  // inside the model
};

NormalizerFields normalizer_of(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kName = 1, kPrecompiledTable = 2;
  NormalizerFields found;
  for_each_field(model, [&](const ProtobufField& field) {
    if (field.number != kNormalizerSpec) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kName) found.name = inner.bytes;
      if (inner.number == kPrecompiledTable) found.table = inner.bytes;
    });
  });
  return found;
}

class OneSentence final : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return done_; }
  void Next() override { done_ = true; }
  const std::string& value() const override { return text_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::string text_ = "a b";
  bool done_ = false;
};

bool is_standard(std::string_view name) {
  return std::ranges::find(kStandardNames, name) != kStandardNames.end();
}

}  // namespace

std::optional<std::string> standard_normalizer_in(std::string_view model) {
  const NormalizerFields found = normalizer_of(model);
  if (found.table.empty() || !is_standard(found.name)) return std::nullopt;
  return std::string(found.name);
}

// The library's headers do not show its tables; every model it trains has one inside.
std::string standard_normalizer_table(std::string_view name) {
  check(is_standard(name), "there is no standard normaliser '{}'", name.substr(0, 40));
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", "char"},
      {"vocab_size", "6"},
      {"hard_vocab_limit", "false"},
      {"normalization_rule_name", std::string(name)},
      {"minloglevel", "3"}};
  OneSentence sentence;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentence, &model);
  check(status.ok(), "libsentencepiece does not give its normaliser {}: {}", name, status.ToString());
  return std::string(normalizer_of(model).table);
}

}  // namespace thimble
