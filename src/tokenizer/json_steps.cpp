#include "tokenizer/json_steps.h"

#include <array>

#include "base/by_type.h"
#include "base/error.h"

namespace thimble {

namespace {

constexpr int kMaxSteps = 64;

const std::string& type_of(const Json& json) {
  return json.at("type").as_string();
}

[[noreturn]] void refuse(std::string_view what, const std::string& type, std::string_view known) {
  fail(Hint{fmt::format("thimble knows {}", known)}, "the {} \"{}\" is not supported", what, type);
}

bool flag(const Json& json, std::string_view key, bool absent) {
  const Json* value = json.find(key);
  return !value || value->is_null() ? absent : value->as_bool();
}

// A Sequence is its steps, one after the other; anything else is one step.
template <class Step, class ReadOne>
std::vector<Step> read_steps(const Json& json, std::string_view members, ReadOne&& read_one) {
  std::vector<Step> steps;
  if (json.is_null()) return steps;
  auto add = [&](auto&& self, const Json& item, int depth) -> void {
    check(depth < 8 && steps.size() < kMaxSteps, "a Sequence of more than {} steps", kMaxSteps);
    if (type_of(item) != "Sequence") return steps.push_back(read_one(item));
    for (const Json& member : item.at(members).as_array()) self(self, member, depth + 1);
  };
  add(add, json, 0);
  return steps;
}

TextPattern read_pattern(const Json& json) {
  if (const Json* text = json.find("String")) return {text->as_string(), false};
  if (const Json* regex = json.find("Regex")) return {regex->as_string(), true};
  fail("a pattern must be {{\"String\": ...}} or {{\"Regex\": ...}}, found {}", json.dump());
}

Json pattern_json(const TextPattern& pattern) {
  return Json::object().set(pattern.regex ? "Regex" : "String", pattern.text);
}

Replace read_replace(const Json& json) {
  return {read_pattern(json.at("pattern")), json.at("content").as_string()};
}

Json replace_json(const Replace& replace) {
  return Json::object()
      .set("type", "Replace")
      .set("pattern", pattern_json(replace.pattern))
      .set("content", replace.content);
}

constexpr std::array<std::string_view, 4> kForms = {"NFC", "NFD", "NFKC", "NFKD"};
constexpr std::array<std::string_view, 5> kBehaviours = {"Removed", "Isolated", "MergedWithPrevious",
                                                         "MergedWithNext", "Contiguous"};

NormalizerStep read_normalizer_step(const Json& json) {
  const std::string& type = type_of(json);
  for (std::size_t i = 0; i < kForms.size(); ++i)
    if (type == kForms[i]) return static_cast<UnicodeForm>(i);
  if (type == "Lowercase") return Lowercase{};
  if (type == "Prepend") return Prepend{json.at("prepend").as_string()};
  if (type == "Replace") return read_replace(json);
  refuse("normalizer", type, "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and Sequence");
}

SplitBehaviour read_behaviour(const std::string& name) {
  for (std::size_t i = 0; i < kBehaviours.size(); ++i)
    if (name == kBehaviours[i]) return static_cast<SplitBehaviour>(i);
  refuse("split behavior", name, "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

PreTokenizerStep read_pre_tokenizer_step(const Json& json) {
  const std::string& type = type_of(json);
  if (type == "Split")
    return Split{read_pattern(json.at("pattern")), read_behaviour(json.at("behavior").as_string()),
                 flag(json, "invert", false)};
  if (type == "Digits") return Digits{flag(json, "individual_digits", false)};
  if (type == "ByteLevel")
    return ByteLevel{flag(json, "add_prefix_space", true), flag(json, "use_regex", true)};
  refuse("pre-tokenizer", type, "ByteLevel, Split, Digits and Sequence");
}

std::uint32_t read_count(const Json& json) {
  const std::uint64_t count = json.as_uint();
  check(count <= 1024, "a Strip of {} characters; at most 1024 make sense", count);
  return static_cast<std::uint32_t>(count);
}

DecoderStep read_decoder_step(const Json& json) {
  const std::string& type = type_of(json);
  if (type == "ByteLevel") return ByteLevelDecoder{};
  if (type == "ByteFallback") return ByteFallbackDecoder{};
  if (type == "Fuse") return FuseDecoder{};
  if (type == "Replace") return read_replace(json);
  if (type == "Strip")
    return StripDecoder{json.at("content").as_string(), read_count(json.at("start")),
                        read_count(json.at("stop"))};
  refuse("decoder", type, "ByteLevel, ByteFallback, Fuse, Replace, Strip and Sequence");
}

TokenId read_id(const Json& json) {
  const std::uint64_t id = json.as_uint();
  check(id <= 0x7FFFFFFF, "{} is no token id", id);
  return static_cast<TokenId>(id);
}

Template read_template(const Json& json) {
  Template result;
  bool after = false;
  for (const Json& part : json.at("single").as_array()) {
    if (part.find("Sequence")) {
      check(!after, "the template of a single text holds the text twice");
      after = true;
      continue;
    }
    const std::string& name = part.at("SpecialToken").at("id").as_string();
    for (const Json& id : json.at("special_tokens").at(name).at("ids").as_array())
      (after ? result.after : result.before).push_back(read_id(id));
  }
  check(after, "the template of a single text does not hold the text");
  return result;
}

Json sequence_of(std::vector<Json> steps, std::string_view members) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::move(steps[0]);
  return Json::object().set("type", "Sequence").set(std::string(members), Json::array(std::move(steps)));
}

Json byte_level_json(bool add_prefix_space, bool use_regex) {
  return Json::object()
      .set("type", "ByteLevel")
      .set("add_prefix_space", add_prefix_space)
      .set("trim_offsets", true)
      .set("use_regex", use_regex);
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const Json& json) {
  return read_steps<NormalizerStep>(json, "normalizers", read_normalizer_step);
}

std::vector<PreTokenizerStep> read_pre_tokenizer(const Json& json) {
  auto steps = read_steps<PreTokenizerStep>(json, "pretokenizers", read_pre_tokenizer_step);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i)
    check(!std::holds_alternative<ByteLevel>(steps[i]),
          "the pre-tokenizer has a step after ByteLevel, which "
          "thimble does not support");
  return steps;
}

std::vector<DecoderStep> read_decoder(const Json& json) {
  return read_steps<DecoderStep>(json, "decoders", read_decoder_step);
}

Template read_post_processor(const Json& json) {
  Template result;
  bool seen = false;
  auto read_one = [&](const Json& item) {
    const std::string& type = type_of(item);
    if (type == "TemplateProcessing") {
      check(!seen, "the post-processor has two templates; thimble supports one");
      seen = true;
      result = read_template(item);
    } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
      refuse("post-processor", type, "TemplateProcessing, ByteLevel and Sequence");
    }
    return 0;
  };
  read_steps<int>(json, "processors", read_one);
  return result;
}

std::vector<AddedToken> read_added_tokens(const Json& json) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  for (const Json& item : json.as_array())
    tokens.push_back({.id = read_id(item.at("id")),
                      .content = item.at("content").as_string(),
                      .single_word = flag(item, "single_word", false),
                      .lstrip = flag(item, "lstrip", false),
                      .rstrip = flag(item, "rstrip", false),
                      .normalized = flag(item, "normalized", true),
                      .special = flag(item, "special", false)});
  return tokens;
}

Json to_json(const std::vector<NormalizerStep>& steps) {
  std::vector<Json> out;
  for (const NormalizerStep& step : steps)
    out.push_back(std::visit(
        ByType{
            [](UnicodeForm form) {
              return Json::object().set("type", kForms[static_cast<std::size_t>(form)]);
            },
            [](Lowercase) { return Json::object().set("type", "Lowercase"); },
            [](const Prepend& p) { return Json::object().set("type", "Prepend").set("prepend", p.text); },
            [](const Replace& r) { return replace_json(r); },
        },
        step));
  return sequence_of(std::move(out), "normalizers");
}

Json to_json(const std::vector<PreTokenizerStep>& steps) {
  std::vector<Json> out;
  for (const PreTokenizerStep& step : steps)
    out.push_back(
        std::visit(ByType{
                       [](const Split& s) {
                         return Json::object()
                             .set("type", "Split")
                             .set("pattern", pattern_json(s.pattern))
                             .set("behavior", kBehaviours[static_cast<std::size_t>(s.behaviour)])
                             .set("invert", s.invert);
                       },
                       [](const Digits& d) {
                         return Json::object().set("type", "Digits").set("individual_digits", d.individual);
                       },
                       [](const ByteLevel& b) { return byte_level_json(b.add_prefix_space, b.use_regex); },
                   },
                   step));
  return sequence_of(std::move(out), "pretokenizers");
}

Json to_json(const std::vector<DecoderStep>& steps) {
  std::vector<Json> out;
  for (const DecoderStep& step : steps)
    out.push_back(
        std::visit(ByType{
                       [](ByteLevelDecoder) { return byte_level_json(true, true); },
                       [](ByteFallbackDecoder) { return Json::object().set("type", "ByteFallback"); },
                       [](FuseDecoder) { return Json::object().set("type", "Fuse"); },
                       [](const StripDecoder& s) {
                         return Json::object()
                             .set("type", "Strip")
                             .set("content", s.content)
                             .set("start", s.start)
                             .set("stop", s.stop);
                       },
                       [](const Replace& r) { return replace_json(r); },
                   },
                   step));
  return sequence_of(std::move(out), "decoders");
}

Json to_json(const std::vector<AddedToken>& tokens) {
  Json out = Json::array();
  for (const AddedToken& token : tokens)
    out.push(Json::object()
                 .set("id", token.id)
                 .set("content", token.content)
                 .set("single_word", token.single_word)
                 .set("lstrip", token.lstrip)
                 .set("rstrip", token.rstrip)
                 .set("normalized", token.normalized)
                 .set("special", token.special));
  return out;
}

Json to_json(const Template& post_processor, const std::vector<std::string>& vocab) {
  if (post_processor.before.empty() && post_processor.after.empty()) return nullptr;
  Json special = Json::object();
  auto part = [&](TokenId id, int type) {
    const std::string& text = vocab.at(static_cast<std::size_t>(id));
    special.set(
        text,
        Json::object().set("id", text).set("ids", Json::array({id})).set("tokens", Json::array({text})));
    return Json::object().set("SpecialToken", Json::object().set("id", text).set("type_id", type));
  };
  Json single = Json::array(), pair = Json::array();
  for (const int type : {0, 1}) {
    const Json sequence =
        Json::object().set("Sequence", Json::object().set("id", type == 0 ? "A" : "B").set("type_id", type));
    auto push = [&](const Json& item) {
      if (type == 0) single.push(item);
      pair.push(item);
    };
    for (const TokenId id : post_processor.before) push(part(id, type));
    push(sequence);
    for (const TokenId id : post_processor.after) push(part(id, type));
  }
  return Json::object()
      .set("type", "TemplateProcessing")
      .set("single", single)
      .set("pair", pair)
      .set("special_tokens", special);
}

}  // namespace thimble
