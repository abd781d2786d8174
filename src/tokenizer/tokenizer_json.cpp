#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/json_steps.h"

namespace thimble {

namespace {

constexpr std::int64_t kMaxId = (1 << 22) - 1;  // the largest vocabularies in use have some 260,000

std::string shortened(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return std::string(text.substr(0, kShown)) + (text.size() > kShown ? "..." : "");
}

struct VocabEntry {
  std::string text;
  std::int64_t id;
};
using TextPair = std::pair<std::string, std::string>;

// Takes vocabulary and merges as they come, since they are a hundred thousand lines, and builds a Json of
// everything else.
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
    check(
        space != text.npos && text.find(' ', space + 1) == text.npos && space > 0 && space + 1 < text.size(),
        "the merge \"{}\" is not two tokens with a space between", shortened(text));
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void enter(Json value) {
    Place next = Place::elsewhere;
    const bool in_model = open_.size() == 2 && open_[0].key == "model";
    if (in_model && open_[1].key == "vocab") {
      check(value.is_object(), "the vocabulary is not an object of tokens and ids; only BPE is supported");
      next = Place::vocab;
      has_vocab = true;
    }
    if (in_model && open_[1].key == "merges" && value.is_array()) {
      next = Place::merges;
      has_merges = true;
    }
    if (place() == Place::merges) {
      check(value.is_array(), "a merge must be a string or a pair of strings");
      next = Place::merge;
      merge_.clear();
    } else {
      check(place() == Place::elsewhere, "{} holds something that is neither a string nor a number",
            in_vocab() ? "the vocabulary" : "a merge");
    }
    open_.push_back({std::move(value), {}, next});
  }

  void leave() {
    const Place left = place();
    Json value = std::move(open_.back().value);
    open_.pop_back();
    if (left == Place::merge) {
      check(merge_.size() == 2, "a merge has {} tokens; expected 2", merge_.size());
      merges.emplace_back(std::move(merge_[0]), std::move(merge_[1]));
    } else {
      add(std::move(value));
    }
  }

  void add(Json value) {
    check(place() == Place::elsewhere, "{} holds {}", in_vocab() ? "the vocabulary" : "the list of merges",
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

// Absent, null, "" and false all mean: not used.
bool is_unused(const Json& value) {
  return value.is_null() || (value.is_string() && value.as_string().empty()) ||
         (value.is_bool() && !value.as_bool()) || (value.is_number() && value.as_double() == 0);
}

void refuse_what_is_not_honoured(const Json& root, const Json& model) {
  const Json& type =
      member(model, "type");  // absent in files of the first years, which are BPE if they have merges
  check(type.is_null() || type.as_string() == "BPE", "the model is of type \"{}\"; only BPE is supported",
        type.is_string() ? type.as_string() : "?");
  for (const std::string_view key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    check(is_unused(member(model, key)), "the model uses {} = {}, which thimble does not support", key,
          member(model, key).dump());
  check(is_unused(member(root, "truncation")), Hint{"set \"truncation\" to null"},
        "the file truncates every text (truncation), which thimble does not support");
  const Json& padding = member(root, "padding");
  check(is_unused(padding) || !member(padding, "strategy").is_object(), Hint{"set \"padding\" to null"},
        "the file pads every text to a fixed length (padding), which thimble does not support");
}

bool flag(const Json& json, std::string_view key) {
  const Json& value = member(json, key);
  return !value.is_null() && value.as_bool();
}

// Where a vocabulary of this many entries may put its ids: holes are allowed, deserts are not.
void place_token(std::vector<std::string>& vocab, std::string text, std::int64_t id) {
  check(id >= 0 && id <= kMaxId, "the token \"{}\" has the id {}; expected 0 to {}", shortened(text), id,
        kMaxId);
  const auto at = static_cast<std::size_t>(id);
  if (at >= vocab.size()) vocab.resize(at + 1);
  check(vocab[at].empty() || vocab[at] == text, "the id {} belongs to two tokens, \"{}\" and \"{}\"", id,
        shortened(vocab[at]), shortened(text));
  check(!text.empty(), "the id {} has an empty token", id);
  vocab[at] = std::move(text);
}

void place_vocabulary(BpeSpec& spec, std::vector<VocabEntry> entries) {
  for (VocabEntry& entry : entries) place_token(spec.vocab, std::move(entry.text), entry.id);
}

void place_added_tokens(BpeSpec& spec, const std::unordered_map<std::string_view, TokenId>& ids) {
  for (const AddedToken& token : spec.added_tokens) {
    const auto found = ids.find(token.content);
    check(found == ids.end() || found->second == token.id,
          "the added token \"{}\" has the id {}, but {} in the vocabulary", shortened(token.content),
          token.id, found == ids.end() ? -1 : found->second);
  }
  for (const AddedToken& token : spec.added_tokens) place_token(spec.vocab, token.content, token.id);
}

bool is_pad_token(const AddedToken& token) {
  const std::string text = pad_token_text(token.id, {});
  return token.content.starts_with(text) && token.content.find_first_not_of('_', text.size()) == text.npos;
}

// Names that an export gave to rows of the embedding without a token: still no tokens.
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
  auto id_of = [&](std::size_t rank, const std::string& text) {
    const auto found = ids.find(text);
    check(found != ids.end(),
          "merge {} (\"{}\" + \"{}\") needs the token \"{}\", which is not in the vocabulary", rank,
          shortened(merges[rank].first), shortened(merges[rank].second), shortened(text));
    return found->second;
  };
  spec.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    spec.merges.push_back({id_of(rank, left), id_of(rank, right), id_of(rank, left + right)});
  }
}

void check_template(const BpeSpec& spec) {
  for (const auto* ids : {&spec.post_processor.before, &spec.post_processor.after})
    for (const TokenId id : *ids)
      check(static_cast<std::size_t>(id) < spec.vocab.size(),
            "the template uses the id {}; the vocabulary ends at {}", id, spec.vocab.size());
}

void check_decoder(const BpeSpec& spec) {
  const bool bytes = std::any_of(spec.decoder.begin(), spec.decoder.end(), [](const DecoderStep& step) {
    return std::holds_alternative<ByteLevelDecoder>(step);
  });
  check(
      !bytes || (spec.decoder.size() == 1 && spec.byte_level()),
      "the decoder uses ByteLevel together with other steps or another pre-tokenizer, which thimble does not "
      "support");
  check(bytes || !spec.byte_level(),
        "the pre-tokenizer is ByteLevel and the decoder is not: text would not come "
        "back");
}

BpeSpec build(FileVisitor file) {
  check(file.root.is_object(), "expected an object");
  const Json& model = member(file.root, "model");
  refuse_what_is_not_honoured(file.root, model);
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
  const std::vector<std::string> model_vocab = spec.vocab;  // the map's views must not move
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
  while (known.contains(text)) text += '_';  // nobody takes two tokens of one text
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

// One token and one merge a line: a difference between two tokenizers can be read.
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

}  // namespace thimble
