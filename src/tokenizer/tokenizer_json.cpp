#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace thimble {

namespace {

constexpr std::int64_t kMaxId = (1 << 22) - 1;  // the largest in use have about 260,000

std::string shortened(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return std::string(text.substr(0, kShown)) + (text.size() > kShown ? "..." : "");
}

struct VocabEntry {
  std::string text;
  std::int64_t id;
};
using TextPair = std::pair<std::string, std::string>;

// Collects vocabulary and merges, which can have 100,000 entries, and builds a Json of the others.
class FileVisitor : public JsonVisitor {
 public:
  Json root;
  std::vector<VocabEntry> vocab;
  std::vector<TextPair> merges;
  bool has_vocab = false, has_merges = false;

  void null() override { add(nullptr); }
  void boolean(bool value) override { add(value); }
  void integer(std::int64_t value) override {
    if (in_vocab())
      vocab.push_back({std::move(open_.back().key), value});
    else
      add(value);
  }
  void big_integer(std::uint64_t value) override { add(value); }
  void number(double value) override { add(value); }
  void string(std::string value) override {
    if (place() == Place::merges)
      merges.push_back(two_words(value));
    else if (place() == Place::merge)
      merge_.push_back(std::move(value));
    else
      add(std::move(value));
  }
  void key(std::string key) override { open_.back().key = std::move(key); }
  void start_object() override { enter(Json::object()); }
  void start_array() override { enter(Json::array()); }
  void end_object() override { leave(); }
  void end_array() override { leave(); }

 private:
  enum class Place { elsewhere, vocab, merges, merge };
  struct Open {
    Json value;
    std::string key;
    Place place;
  };

  Place place() const { return open_.empty() ? Place::elsewhere : open_.back().place; }
  bool in_vocab() const { return place() == Place::vocab; }

  static TextPair two_words(const std::string& text) {
    const auto space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos || space == 0 ||
        space + 1 == text.size())
      fail("expected a merge of two tokens separated by a space, found \"{}\"", shortened(text));
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void enter(Json value) {
    Place next = Place::elsewhere;
    const bool in_model = open_.size() == 2 && open_[0].key == "model";
    if (in_model && open_[1].key == "vocab") {
      check(value.is_object(),
            "expected the vocabulary to be an object of tokens and ids, because only BPE is supported");
      next = Place::vocab;
      has_vocab = true;
    }
    if (in_model && open_[1].key == "merges" && value.is_array()) {
      next = Place::merges;
      has_merges = true;
    }
    if (place() == Place::merges) {
      check(value.is_array(), "expected a merge to be a string or a pair of strings");
      next = Place::merge;
      merge_.clear();
    } else {
      check(place() == Place::elsewhere, "{} contains a value that is neither a string nor a number",
            in_vocab() ? "the vocabulary" : "a merge");
    }
    open_.push_back({std::move(value), {}, next});
  }

  void leave() {
    const Place left = place();
    Json value = std::move(open_.back().value);
    open_.pop_back();
    if (left == Place::merge) {
      check(merge_.size() == 2, "expected 2 tokens in a merge, found {}", merge_.size());
      merges.emplace_back(std::move(merge_[0]), std::move(merge_[1]));
    } else {
      add(std::move(value));
    }
  }

  void add(Json value) {
    check(place() == Place::elsewhere, "{} contains {}", in_vocab() ? "the vocabulary" : "the list of merges",
          shortened(value.dump()));
    if (open_.empty())
      root = std::move(value);
    else if (Open& parent = open_.back(); parent.value.is_array())
      parent.value.push(std::move(value));
    else
      parent.value.set(std::move(parent.key), std::move(value));
  }

  std::vector<Open> open_;
  std::vector<std::string> merge_;
};

const Json& member(const Json& json, std::string_view key) {
  static const Json null;
  const Json* found = json.find(key);
  return found ? *found : null;
}

// A feature is unused if its value is absent, null, "", false or 0.
bool is_unused(const Json& value) {
  return value.is_null() || (value.is_string() && value.as_string().empty()) ||
         (value.is_bool() && !value.as_bool()) || (value.is_number() && value.as_double() == 0);
}

void refuse_unsupported_features(const Json& root, const Json& model) {
  // Absent in old files, which are BPE if they have merges.
  const Json& type = member(model, "type");
  check(type.is_null() || type.as_string() == "BPE", "expected a model of type \"BPE\", found \"{}\"",
        type.is_string() ? type.as_string() : "?");
  for (const std::string_view key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    check(is_unused(member(model, key)), "the model uses {} = {}, which is not supported", key,
          member(model, key).dump());
  check(is_unused(member(root, "truncation")), Hint{"set \"truncation\" to null"},
        "the file uses \"truncation\", which is not supported");
  const Json& padding = member(root, "padding");
  check(is_unused(padding) || !member(padding, "strategy").is_object(), Hint{"set \"padding\" to null"},
        "the file uses \"padding\" to a fixed length, which is not supported");
}

bool flag(const Json& json, std::string_view key) {
  const Json& value = member(json, key);
  return !value.is_null() && value.as_bool();
}

// Stores a token at its id. Unused ids in between are allowed up to kMaxId.
void place_token(std::vector<std::string>& vocab, std::string text, std::int64_t id) {
  if (id < 0 || id > kMaxId)
    fail("the token \"{}\" has the id {}, expected 0 to {}", shortened(text), id, kMaxId);
  const auto at = static_cast<std::size_t>(id);
  if (at >= vocab.size()) vocab.resize(at + 1);
  if (!vocab[at].empty() && vocab[at] != text)
    fail("two tokens have the id {}: \"{}\" and \"{}\"", id, shortened(vocab[at]), shortened(text));
  check(!text.empty(), "the token with the id {} is empty", id);
  vocab[at] = std::move(text);
}

void place_vocabulary(BpeSpec& spec, std::vector<VocabEntry> entries) {
  for (VocabEntry& entry : entries) place_token(spec.vocab, std::move(entry.text), entry.id);
}

void place_added_tokens(BpeSpec& spec, const std::unordered_map<std::string_view, TokenId>& ids) {
  for (const AddedToken& token : spec.added_tokens) {
    const auto found = ids.find(token.content);
    check(found == ids.end() || found->second == token.id,
          "the added token \"{}\" has the id {}, but in the vocabulary it has {}", shortened(token.content),
          token.id, found == ids.end() ? -1 : found->second);
  }
  for (const AddedToken& token : spec.added_tokens) place_token(spec.vocab, token.content, token.id);
}

bool is_pad_token(const AddedToken& token) {
  const std::string text = pad_token_text(token.id, {});
  return token.content.starts_with(text) && token.content.find_first_not_of('_', text.size()) == text.npos;
}

// Drops the names that an export gave to embedding rows without a token.
void drop_pad_tokens(BpeSpec& spec) {
  std::erase_if(spec.added_tokens, [&](const AddedToken& token) {
    const bool pad = is_pad_token(token);
    if (pad) spec.vocab[static_cast<std::size_t>(token.id)].clear();
    return pad;
  });
  while (!spec.vocab.empty() && spec.vocab.back().empty()) spec.vocab.pop_back();
}

void resolve_merges(BpeSpec& spec, const std::vector<TextPair>& merges,
                    const std::unordered_map<std::string_view, TokenId>& ids) {
  auto id_of = [&](std::size_t rank, std::string_view text) {
    const auto found = ids.find(text);
    if (found == ids.end())  // not check(): its arguments would be computed for every merge
      fail("merge {} (\"{}\" + \"{}\") refers to the token \"{}\", which is not in the vocabulary", rank,
           shortened(merges[rank].first), shortened(merges[rank].second), shortened(text));
    return found->second;
  };
  spec.merges.reserve(merges.size());
  std::string both;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    both.assign(left).append(right);
    spec.merges.push_back({id_of(rank, left), id_of(rank, right), id_of(rank, both)});
  }
}

void check_template(const BpeSpec& spec) {
  for (const auto* ids : {&spec.post_processor.before, &spec.post_processor.after})
    for (const TokenId id : *ids)
      check(static_cast<std::size_t>(id) < spec.vocab.size(),
            "the template uses the id {}, but the vocabulary has {} entries", id, spec.vocab.size());
}

void check_decoder(const BpeSpec& spec) {
  const bool bytes = std::any_of(spec.decoder.begin(), spec.decoder.end(), [](const DecoderStep& step) {
    return std::holds_alternative<ByteLevelDecoder>(step);
  });
  check(!bytes || (spec.decoder.size() == 1 && spec.byte_level()),
        "the decoder uses ByteLevel with other steps or another pre-tokenizer, which is not supported");
  check(bytes || !spec.byte_level(), "expected a ByteLevel decoder for the ByteLevel pre-tokenizer");
}

BpeSpec build(FileVisitor file) {
  check(file.root.is_object(), "expected an object");
  const Json& model = member(file.root, "model");
  refuse_unsupported_features(file.root, model);
  check(file.has_vocab && file.has_merges, "no \"{}\" in \"model\"", file.has_vocab ? "merges" : "vocab");
  check(!file.vocab.empty(), "the vocabulary is empty");

  BpeSpec spec;
  spec.normalizer = read_normalizer(member(file.root, "normalizer"));
  spec.pre_tokenizer = read_pre_tokenizer(member(file.root, "pre_tokenizer"));
  spec.decoder = read_decoder(member(file.root, "decoder"));
  spec.post_processor = read_post_processor(member(file.root, "post_processor"));
  spec.added_tokens = read_added_tokens(member(file.root, "added_tokens"));
  spec.fuse_unk = flag(model, "fuse_unk");
  spec.byte_fallback = flag(model, "byte_fallback");
  spec.ignore_merges = flag(model, "ignore_merges");
  if (const Json& unk = member(model, "unk_token"); !unk.is_null()) spec.unk_token = unk.as_string();

  place_vocabulary(spec, std::move(file.vocab));
  std::unordered_map<std::string_view, TokenId> ids;
  const std::vector<std::string> model_vocab = spec.vocab;  // owns the strings in the map
  ids.reserve(model_vocab.size());
  for (std::size_t id = 0; id < model_vocab.size(); ++id)
    if (!model_vocab[id].empty()) ids.emplace(model_vocab[id], static_cast<TokenId>(id));
  resolve_merges(spec, file.merges, ids);
  place_added_tokens(spec, ids);
  drop_pad_tokens(spec);
  check_template(spec);
  check_decoder(spec);
  return spec;
}

void append_line(std::string& out, std::string_view key, const Json& value) {
  out += fmt::format("  \"{}\": {},\n", key, value.dump());
}

}  // namespace

std::string pad_token_text(std::int64_t id, const std::unordered_set<std::string>& known) {
  std::string text = fmt::format("<|pad_{}|>", id);
  while (known.contains(text)) text += '_';  // token texts must be unique
  return text;
}

BpeSpec parse_tokenizer_json(std::string_view text, std::string_view name) {
  FileVisitor visitor;
  try {
    visit_json(text, name, visitor);
    return build(std::move(visitor));
  } catch (const Error& error) {
    const std::string_view what = error.what();
    throw what.starts_with(name)
        ? error
        : Error(fmt::format("{}: {}", name, what), Hint{error.hint()}, error.where());
  }
}

// Writes one token or merge per line, so that two tokenizers can be compared with diff.
std::string write_tokenizer_json(const BpeSpec& spec) {
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  append_line(out, "added_tokens", to_json(spec.added_tokens));
  append_line(out, "normalizer", to_json(spec.normalizer));
  append_line(out, "pre_tokenizer", to_json(spec.pre_tokenizer));
  append_line(out, "post_processor", to_json(spec.post_processor, spec.vocab));
  append_line(out, "decoder", to_json(spec.decoder));
  const Json unk = spec.unk_token.empty() ? Json() : Json(spec.unk_token);
  out += fmt::format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": {},\n    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n",
      unk.dump(), spec.fuse_unk, spec.byte_fallback, spec.ignore_merges);
  out += "    \"vocab\": {";
  const char* separator = "\n";
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    out += separator;
    out += "      ";
    append_json_string(out, spec.vocab[id]);
    out += fmt::format(": {}", id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const Merge& merge : spec.merges) {
    out += separator;
    out += "      [";
    append_json_string(out, spec.vocab[static_cast<std::size_t>(merge.left)]);
    out += ", ";
    append_json_string(out, spec.vocab[static_cast<std::size_t>(merge.right)]);
    out += "]";
    separator = ",\n";
  }
  out += spec.merges.empty() ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n";
  return out;
}

namespace {

constexpr int kMaxSteps = 64;

const std::string& type_of(const Json& json) {
  return json.at("type").as_string();
}

[[noreturn]] void refuse(std::string_view what, const std::string& type, std::string_view known) {
  fail(Hint{fmt::format("use one of {}", known)}, "the {} \"{}\" is not supported", what, type);
}

bool flag(const Json& json, std::string_view key, bool absent) {
  const Json* value = json.find(key);
  return !value || value->is_null() ? absent : value->as_bool();
}

// A Sequence is replaced by its steps, even if nested; anything else is one step.
template <class Step, class ReadOne>
std::vector<Step> read_steps(const Json& json, std::string_view members, ReadOne&& read_one) {
  std::vector<Step> steps;
  if (json.is_null()) return steps;
  auto add = [&](auto&& self, const Json& item, int depth) -> void {
    check(depth < 8 && steps.size() < kMaxSteps,
          "expected at most {} steps in a Sequence, nested less than 8 deep", kMaxSteps);
    if (type_of(item) != "Sequence") return steps.push_back(read_one(item));
    for (const Json& member : item.at(members).as_array()) self(self, member, depth + 1);
  };
  add(add, json, 0);
  return steps;
}

TextPattern read_pattern(const Json& json) {
  if (const Json* text = json.find("String")) return {text->as_string(), false};
  if (const Json* regex = json.find("Regex")) return {regex->as_string(), true};
  fail("expected a pattern {{\"String\": ...}} or {{\"Regex\": ...}}, found {}", json.dump());
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
  check(count <= 1024, "expected a Strip of at most 1024 characters, found {}", count);
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
  check(id <= 0x7FFFFFFF, "{} is not a token id", id);
  return static_cast<TokenId>(id);
}

Template read_template(const Json& json) {
  Template result;
  bool after = false;
  for (const Json& part : json.at("single").as_array()) {
    if (part.find("Sequence")) {
      check(!after, "the template \"single\" contains the text twice");
      after = true;
      continue;
    }
    const std::string& name = part.at("SpecialToken").at("id").as_string();
    for (const Json& id : json.at("special_tokens").at(name).at("ids").as_array())
      (after ? result.after : result.before).push_back(read_id(id));
  }
  check(after, "the template \"single\" does not contain the text");
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
          "the pre-tokenizer has a step after ByteLevel, which is not supported");
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
      check(!seen, "the post-processor has two templates, but only one is supported");
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
