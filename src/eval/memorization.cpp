#include "eval/memorization.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "infer/batcher.h"

namespace thimble {

namespace {

constexpr std::size_t kMostTokens = std::size_t{1} << 28;  // of the texts
constexpr std::uint64_t kBlockTokens = 1 << 16;            // of the training data, read at a time
constexpr std::size_t kShownBytes = 400;                   // of a run

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Identifies a run of an automaton: the state and the length.
std::uint64_t run_key(std::int32_t state, std::uint64_t length) {
  return std::uint64_t{static_cast<std::uint32_t>(state)} << 32 | length;
}

}  // namespace

VerbatimAlphabet::VerbatimAlphabet(const Tokenizer& tokenizer) : bos(bos_of(tokenizer)) {
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    text.clear();
    tokenizer.append_token(id, false, text);
    characters.push_back(static_cast<std::uint32_t>(std::ranges::count_if(text, begins_character)));
    is_boundary.push_back(tokenizer.token_type(id) == TokenType::control);
  }
}

VerbatimAlphabet::VerbatimAlphabet(TokenId vocab_size, TokenId bos)
    : bos(bos),
      is_boundary(static_cast<std::size_t>(vocab_size), 0),
      characters(static_cast<std::size_t>(vocab_size), 1) {
  is_boundary.at(static_cast<std::size_t>(bos)) = 1;
}

VerbatimSearch::VerbatimSearch(std::span<const std::vector<TokenId>> texts, VerbatimAlphabet alphabet)
    : alphabet_(std::move(alphabet)), separator_(static_cast<TokenId>(alphabet_.characters.size())) {
  std::size_t tokens = texts.size();  // a separator follows each text
  for (const std::vector<TokenId>& text : texts) tokens += text.size();
  check(tokens < kMostTokens, "[memorization] cannot search for {} tokens", tokens);
  // An automaton of n tokens has at most 2n states and 3n edges.
  states_.reserve(2 * tokens + 1);
  slots_.resize(std::bit_ceil(6 * tokens + 2));
  root_.assign(alphabet_.characters.size() + 1, -1);
  states_.emplace_back();
  for (const std::vector<TokenId>& text : texts) {
    std::vector<std::int32_t>& prefixes = prefix_states_.emplace_back();
    for (const TokenId token : text) {
      append(is_boundary(token) ? separator_ : token);
      prefixes.push_back(is_boundary(token) ? 0 : last_);
    }
    append(separator_);
  }
  for (const std::vector<TokenId>& text : texts) {
    keys_.push_back(key_of(text));
    whole_.push_back({.key = keys_.back()});
  }
  std::ranges::sort(whole_, {}, &Whole::key);
}

std::uint64_t VerbatimSearch::key_of(std::span<const TokenId> text) const {
  std::int32_t state = 0;
  for (const TokenId token : text) {
    if (is_boundary(token)) return 0;
    state = target(state, token);
  }
  return run_key(state, text.size());
}

std::size_t VerbatimSearch::slot_of(std::int32_t state, TokenId token) const {
  const std::uint64_t key = run_key(state, static_cast<std::uint32_t>(token));
  auto slot = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (65 - std::bit_width(slots_.size())));
  while (slots_[slot].key != 0 && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

std::int32_t VerbatimSearch::target(std::int32_t state, TokenId token) const {
  if (state == 0) return root_[static_cast<std::size_t>(token)];
  const Slot& slot = slots_[slot_of(state, token)];
  return slot.key == 0 ? -1 : slot.target;
}

void VerbatimSearch::set_target(std::int32_t state, TokenId token, std::int32_t target) {
  if (state == 0) {
    root_[static_cast<std::size_t>(token)] = target;
    return;
  }
  Slot& slot = slots_[slot_of(state, token)];
  if (slot.key == 0) {
    slot.key = run_key(state, static_cast<std::uint32_t>(token));
    edges_.push_back({token, at(state).first_edge});
    at(state).first_edge = static_cast<std::int32_t>(edges_.size()) - 1;
  }
  slot.target = target;
}

// The usual construction of a suffix automaton (Blumer et al. 1985).
void VerbatimSearch::append(TokenId token) {
  const auto added = static_cast<std::int32_t>(states_.size());
  states_.push_back({.length = at(last_).length + 1});
  std::int32_t from = last_;
  for (; from >= 0 && target(from, token) < 0; from = at(from).link) set_target(from, token, added);
  const std::int32_t link = from < 0 ? 0 : state_for(from, token);
  at(added).link = link;
  last_ = added;
}

// The state that contains the longest run of `from` followed by the token as its own longest run.
std::int32_t VerbatimSearch::state_for(std::int32_t from, TokenId token) {
  const std::int32_t next = target(from, token);
  if (at(next).length == at(from).length + 1) return next;
  const auto clone = static_cast<std::int32_t>(states_.size());
  states_.push_back({.length = at(from).length + 1, .link = at(next).link});
  for (std::int32_t edge = at(next).first_edge; edge >= 0;
       edge = edges_[static_cast<std::size_t>(edge)].next) {
    const TokenId other = edges_[static_cast<std::size_t>(edge)].token;
    set_target(clone, other, target(next, other));
  }
  for (; from >= 0 && target(from, token) == next; from = at(from).link) set_target(from, token, clone);
  at(next).link = clone;
  return clone;
}

void VerbatimSearch::read(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    if (is_boundary(token)) {
      end_segment();
      if (token == alphabet_.bos) {
        ++document_;
        characters_ = 0;
      }
      continue;
    }
    ++segment_;
    characters_ += alphabet_.characters[static_cast<std::size_t>(token)];
    std::int32_t next = target(state_, token);
    while (next < 0 && state_ > 0) {
      state_ = at(state_).link;
      length_ = at(state_).length;
      next = target(state_, token);
    }
    if (next < 0) continue;  // the text has no such token
    state_ = next;
    ++length_;
    if (State& state = at(state_); length_ > state.found) {
      state.found = length_;
      state.document = document_;
      state.end = characters_;
    }
  }
}

void VerbatimSearch::end_segment() {
  if (segment_ > 0 && static_cast<std::uint64_t>(length_) == segment_) {
    for (Whole& whole : std::ranges::equal_range(whole_, run_key(state_, segment_), {}, &Whole::key))
      whole.found = true;
  }
  state_ = length_ = 0;
  segment_ = 0;
}

// The suffixes of a run that was found were found too.
void VerbatimSearch::pass_to_shorter_runs() {
  std::vector<std::int32_t> longest_first(states_.size() - 1);
  std::iota(longest_first.begin(), longest_first.end(), 1);
  std::ranges::sort(longest_first, std::greater(), [&](std::int32_t state) { return at(state).length; });
  for (const std::int32_t index : longest_first) {
    const State& state = at(index);
    State& shorter = at(state.link);
    if (state.found == 0 || shorter.found == shorter.length) continue;
    shorter.found = shorter.length;
    shorter.document = state.document;
    shorter.end = state.end;
  }
  // A run that was not found has the match of its longest suffix that was.
  for (const std::int32_t index : std::views::reverse(longest_first))
    if (State& state = at(index); state.found == 0) {
      const State& suffix = at(state.link);
      state.found = suffix.found;
      state.document = suffix.document;
      state.end = suffix.end;
    }
}

std::vector<VerbatimMatches> VerbatimSearch::finish() {
  end_segment();
  pass_to_shorter_runs();
  std::vector<VerbatimMatches> all;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    VerbatimMatches& matches = all.emplace_back();
    for (const std::int32_t index : prefix_states_[i]) {
      const State& state = at(index);
      matches.ending_at.push_back({static_cast<std::uint32_t>(state.found), state.document, state.end});
    }
    const auto whole = std::ranges::lower_bound(whole_, keys_[i], {}, &Whole::key);
    matches.is_complete = keys_[i] != 0 && whole->found;
  }
  return all;
}

namespace {

// What is searched for: generated texts, and the held-out texts that they are compared with.
struct Texts {
  std::vector<std::vector<TokenId>> texts;
  std::vector<bool> whole;  // by text: whether it has an end of its own

  void add(std::vector<TokenId> text, bool is_whole) {
    texts.push_back(std::move(text));
    whole.push_back(is_whole);
  }
};

// The characters of each prefix of a text, from that of no token.
std::vector<std::int64_t> character_ends(std::span<const TokenId> text, const VerbatimAlphabet& alphabet) {
  std::vector<std::int64_t> ends = {0};
  for (const TokenId token : text) {
    const auto id = static_cast<std::size_t>(token);
    ends.push_back(ends.back() +
                   (token >= 0 && id < alphabet.characters.size() ? alphabet.characters[id] : 0));
  }
  return ends;
}

void count(std::span<const TokenId> text, bool is_whole, const VerbatimMatches& matches,
           const VerbatimAlphabet& alphabet, VerbatimShare& share) {
  const std::vector<std::int64_t> characters = character_ends(text, alphabet);
  ++share.texts;
  share.tokens += std::ssize(text);
  share.characters += characters.back();
  std::int64_t longest = 0;
  std::size_t covered = 0;  // tokens before this one are in runs that were counted
  for (std::size_t end = 1; end <= text.size(); ++end) {
    const std::size_t tokens = matches.ending_at[end - 1].tokens;
    for (std::size_t i = 0; i < kVerbatimGrams.size(); ++i) {
      if (std::cmp_less(end, kVerbatimGrams[i])) continue;
      ++share.grams[i];
      share.grams_found[i] += std::cmp_greater_equal(tokens, kVerbatimGrams[i]);
    }
    const std::int64_t run = characters[end] - characters[end - tokens];
    longest = std::max(longest, run);
    if (run < kVerbatimRun) continue;
    share.run_characters += characters[end] - characters[std::max(covered, end - tokens)];
    covered = end;
  }
  share.longest_run = std::max(share.longest_run, longest);
  share.mean_run += (static_cast<double>(longest) - share.mean_run) / static_cast<double>(share.texts);
  share.whole += is_whole;
  share.whole_found += is_whole && matches.is_complete;
}

VerbatimShare share_of(const Texts& texts, std::span<const VerbatimMatches> matches,
                       const VerbatimAlphabet& alphabet) {
  VerbatimShare share;
  for (std::size_t i = 0; i < texts.texts.size(); ++i)
    count(texts.texts[i], texts.whole[i], matches[i], alphabet, share);
  return share;
}

// The longest runs that no longer run contains.
std::vector<VerbatimRun> longest_runs(const Texts& texts, std::span<const VerbatimMatches> matches,
                                      const VerbatimAlphabet& alphabet, const Tokenizer& tokenizer,
                                      std::size_t most) {
  struct Place {
    std::int64_t characters;
    std::size_t text, end;
  };
  std::vector<Place> places;
  for (std::size_t i = 0; i < texts.texts.size(); ++i) {
    const std::vector<std::int64_t> characters = character_ends(texts.texts[i], alphabet);
    const std::vector<VerbatimMatch>& ending = matches[i].ending_at;
    for (std::size_t end = 1; end <= ending.size(); ++end) {
      const bool grows = end < ending.size() && ending[end].tokens > ending[end - 1].tokens;
      if (!grows && ending[end - 1].tokens > 0)
        places.push_back({characters[end] - characters[end - ending[end - 1].tokens], i, end});
    }
  }
  std::ranges::stable_sort(places, std::greater(), &Place::characters);
  std::vector<VerbatimRun> runs;
  for (const Place& place : places) {
    if (runs.size() == most) break;
    const VerbatimMatch& match = matches[place.text].ending_at[place.end - 1];
    const auto ids = std::span(texts.texts[place.text]).subspan(place.end - match.tokens, match.tokens);
    VerbatimRun run{.text = tokenizer.decode(ids),
                    .characters = place.characters,
                    .tokens = match.tokens,
                    .document = match.document,
                    .offset = match.end - std::min(match.end, static_cast<std::uint64_t>(place.characters))};
    const auto contains = [&](const VerbatimRun& longer) {
      return longer.text.find(run.text) != std::string::npos;
    };
    if (std::ranges::none_of(runs, contains)) runs.push_back(std::move(run));
  }
  return runs;
}

constexpr std::int64_t kTextTokens = 256;   // maximum length of a sample
constexpr std::int64_t kPromptTokens = 32;  // of a held-out document, before a sample that continues it
constexpr std::int64_t kLeastAnswer = 16;   // tokens that must fit after a question
constexpr std::int64_t kSlots = 16;         // samples generated at the same time
constexpr std::int64_t kMostTexts = 1024;
constexpr std::uint64_t kTokensToSearch = 1 << 13;  // of the held-out text, for the start of a document

// A held-out text, and the prompt from which the model generates the sample that it is compared
// with.
struct Piece {
  std::vector<TokenId> prompt, text = {};
  bool is_whole = false;  // the text ends with its document or turn
};

// Where the pieces of a held-out set are taken from: `count` intervals of equal length.
struct Intervals {
  const TokenSet& set;
  std::uint64_t count;

  // `most` tokens of the first document that begins in an interval, without its bos. If none does,
  // the tokens of the interval, which are a part of a document.
  std::vector<TokenId> tokens(std::uint64_t i, std::uint64_t most) const {
    const std::uint64_t length = set.size() / count, begin = length * i;
    std::vector<TokenId> tokens(std::min(length, kTokensToSearch));
    set.copy(begin, tokens);
    const auto bos = std::ranges::find(tokens, set.marks().bos);
    if (bos == tokens.end()) return tokens;
    const std::uint64_t start = begin + static_cast<std::uint64_t>(bos - tokens.begin()) + 1;
    tokens.resize(std::min(set.size() - start, most));
    set.copy(start, tokens);
    return tokens;
  }

  // The first conversation that begins in an interval, with what is learned of it. If none does, a
  // part of one.
  Grid conversation(std::uint64_t i, std::uint64_t most) const {
    const std::uint64_t length = set.size() / count, begin = length * i;
    Grid search, found;
    set.append(begin, std::min(length, kTokensToSearch), AfterLast::bos, search);
    const auto first = std::ranges::find(search.doc_start, 1);
    if (first == search.doc_start.end()) {
      const auto asked = std::ranges::find_if(search.target, [](TokenId target) { return target < 0; });
      search.input.erase(search.input.begin(), search.input.begin() + (asked - search.target.begin()));
      search.target.erase(search.target.begin(), asked);
      if (set.marks().stored) return search;
      search.input.insert(search.input.begin(), set.marks().bos);
      search.target.insert(search.target.begin(), -1);
      return search;
    }
    const std::uint64_t start = begin + static_cast<std::uint64_t>(first - search.doc_start.begin());
    set.append(start, std::min(set.size() - start, most), AfterLast::bos, found);
    const auto next = std::find(found.doc_start.begin() + 1, found.doc_start.end(), 1);
    found.input.resize(static_cast<std::size_t>(next - found.doc_start.begin()));
    return found;
  }
};

// From the tokens of a document. If `prompted`, its first tokens are in the prompt.
Piece text_piece(std::vector<TokenId> tokens, TokenId bos, bool prompted, std::int64_t context) {
  const auto end = std::ranges::find(tokens, bos);
  Piece piece{.prompt = {bos}, .text = {tokens.begin(), end}, .is_whole = end != tokens.end() && !prompted};
  if (prompted) {
    const auto cut =
        static_cast<std::ptrdiff_t>(std::min({kPromptTokens, context / 4, std::ssize(piece.text) / 2}));
    piece.prompt.insert(piece.prompt.end(), piece.text.begin(), piece.text.begin() + cut);
    piece.text.erase(piece.text.begin(), piece.text.begin() + cut);
  }
  const auto longest = static_cast<std::size_t>(std::min(kTextTokens, context - std::ssize(piece.prompt)));
  if (piece.text.size() > longest) {
    piece.text.resize(longest);
    piece.is_whole = false;
  }
  return piece;
}

// The first question of a conversation and its answer. The prompt is empty if there is none that
// fits.
Piece chat_piece(const Grid& chat, std::optional<TokenId> end_turn, std::int64_t context) {
  const auto tokens = std::span(chat.input);
  const auto targets = std::span(chat.target).first(tokens.size());
  const auto last = std::ranges::find_if(targets, [](TokenId target) { return target >= 0; });
  const std::int64_t asked = last - targets.begin() + 1, room = context - asked;
  if (last == targets.end() || room < kLeastAnswer) return {};
  Piece piece;
  piece.prompt.assign(tokens.begin(), tokens.begin() + asked);
  const auto end = std::find(tokens.begin() + asked, tokens.end(), end_turn.value_or(-1));
  piece.text.assign(tokens.begin() + asked, end);
  piece.is_whole = end != tokens.end();
  if (std::cmp_greater(piece.text.size(), std::min(kTextTokens, room))) {
    piece.text.resize(static_cast<std::size_t>(std::min(kTextTokens, room)));
    piece.is_whole = false;
  }
  return piece;
}

// The mean length of the first documents of the set, at most that of a sample.
std::int64_t usual_length(const TokenSet& set, std::int64_t longest) {
  std::vector<TokenId> tokens(std::min<std::uint64_t>(set.size(), kTokensToSearch));
  set.copy(0, tokens);
  const auto documents = std::max<std::int64_t>(1, std::ranges::count(tokens, set.marks().bos));
  return std::clamp<std::int64_t>(std::ssize(tokens) / documents, 1, longest);
}

// Where every answer without a question begins.
std::vector<TokenId> prompt_alone(const ChatLayout& layout) {
  if (layout.is_template()) return layout.prompt(Conversation{{ChatRole::user, ""}});
  std::vector<TokenId> ids(layout.start().begin(), layout.start().end());
  ids.insert(ids.end(), layout.answer_start().begin(), layout.answer_start().end());
  return ids;
}

std::vector<Piece> pieces_of(const MemorizationData& data, const Tokenizer& tokenizer, TokenId bos,
                             std::int64_t context, std::int64_t tokens) {
  const std::int64_t longest = std::clamp<std::int64_t>(context - 1, 1, kTextTokens);
  std::vector<Piece> pieces;
  if (!data.held_out) {
    const auto count = std::clamp<std::int64_t>(tokens / longest, 1, kMostTexts);
    const std::vector<TokenId> prompt =
        data.chats ? prompt_alone(ChatLayout(tokenizer, data.layout)) : std::vector<TokenId>{bos};
    pieces.resize(static_cast<std::size_t>(count), {.prompt = prompt});
    return pieces;
  }
  const TokenSet& set = *data.held_out;
  const auto length = static_cast<std::uint64_t>(usual_length(set, longest));
  const std::uint64_t wanted =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(tokens), set.size()) / length;
  const Intervals intervals{set, std::clamp<std::uint64_t>(wanted, 1, kMostTexts)};
  const auto most = static_cast<std::uint64_t>(context + kTextTokens);
  for (std::uint64_t i = 0; i < intervals.count; ++i) {
    Piece piece = data.chats ? chat_piece(intervals.conversation(i, most), set.marks().end_turn, context)
                             : text_piece(intervals.tokens(i, most), bos, i % 2 == 1, context);
    if (!piece.prompt.empty() && !piece.text.empty()) pieces.push_back(std::move(piece));
  }
  check(!pieces.empty(), "the held-out data contain no {}",
        data.chats ? "question that fits into the context" : "text");
  return pieces;
}

Texts generate_texts(Model& model, const Tokenizer& tokenizer, std::span<const Piece> pieces,
                     const MemorizationData& data, const MemorizationOptions& options,
                     const ProgressOutput& progress, const Interrupt* interrupt) {
  std::vector<TokenId> ends = end_ids(tokenizer);
  if (data.chats && data.layout != kRolesLayout) ends.push_back(ChatLayout(tokenizer, data.layout).end_id());
  const std::vector<TokenId> textless = textless_ids(tokenizer, ends);
  Batcher batcher(model, &tokenizer, {.slots = std::min<std::int64_t>(kSlots, std::ssize(pieces))});
  std::map<RequestId, std::size_t> asked;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Request request{
        .prompt = pieces[i].prompt,
        .sampling = {.suppressed = textless, .seed = options.seed + i},
        .max_tokens = std::min(kTextTokens, model.config().context - std::ssize(pieces[i].prompt)),
        .stop_ids = ends};
    asked[batcher.submit(std::move(request))] = i;
  }
  Texts texts{std::vector<std::vector<TokenId>>(pieces.size()), std::vector<bool>(pieces.size())};
  ProgressBar bar(progress, "sampling", "texts", pieces.size());
  while (batcher.busy()) {
    if (interrupt) interrupt->throw_if_interrupted();
    for (const Event& event : batcher.step()) {
      if (event.error) throw *event.error;
      const std::size_t i = asked.at(event.request);
      for (const TokenScore& token : event.tokens) texts.texts[i].push_back(token.id);
      if (!event.finish) continue;
      // After a prompt, the sample is only the rest of a document.
      const bool from_start = data.chats || pieces[i].prompt.size() == 1;
      texts.whole[i] = from_start && *event.finish == FinishReason::stop && !texts.texts[i].empty();
      bar.advance(1);
    }
  }
  return texts;
}

// In one line, with escapes.
std::string quoted(const std::string& text) {
  std::string line;
  append_json_string(line, shortened(text, kShownBytes));
  return line;
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

Json share_json(const VerbatimShare& share) {
  Json grams = Json::object();
  for (std::size_t i = 0; i < kVerbatimGrams.size(); ++i)
    grams.set(fmt::format("{}", kVerbatimGrams[i]),
              Json::object()
                  .set("count", share.grams[i])
                  .set("found", share.grams_found[i])
                  .set("share", share.grams[i] > 0 ? Json(share.gram_share(i)) : Json()));
  return Json::object()
      .set("texts", share.texts)
      .set("tokens", share.tokens)
      .set("characters", share.characters)
      .set("ngrams", grams)
      .set("run_characters", share.run_characters)
      .set("run_share", share.run_share())
      .set("longest_run", share.longest_run)
      .set("mean_run", share.mean_run)
      .set("whole", share.whole)
      .set("whole_found", share.whole_found);
}

}  // namespace

bool Memorization::repeats_training_data() const {
  constexpr double kClearRuns = 0.01, kClearDocuments = 0.05;
  const VerbatimShare other = held_out.value_or(VerbatimShare());
  return sampled.run_share() - other.run_share() >= kClearRuns ||
         (has_short_texts() && sampled.whole_share() - other.whole_share() >= kClearDocuments);
}

std::string Memorization::line() const {
  const VerbatimShare other = held_out.value_or(VerbatimShare());
  const auto beside = [&](const std::string& figure) {
    return held_out ? fmt::format(" (held-out text: {})", figure) : "";
  };
  std::string line = "memorization: ";
  if (has_short_texts() && sampled.whole > 0)
    line += fmt::format("{} of the sampled {}{} are equal to one of the training data",
                        percent(sampled.whole_share()), chats ? "answers" : "documents",
                        beside(percent(other.whole_share())));
  else
    line += fmt::format(
        "{} of the sampled text{} is in runs of {} or more characters that occur in the training data; the "
        "longest run has {} characters{}",
        percent(sampled.run_share()), beside(percent(other.run_share())), kVerbatimRun,
        with_commas(sampled.longest_run), beside(with_commas(other.longest_run)));
  if (repeats_training_data())
    line += ". The model repeats parts of its training data: read the examples before you share it";
  return line;
}

std::string Memorization::text(std::size_t width) const {
  Table table({"", "sampled", "held-out"});
  const auto row = [&](std::string name, const auto& figure) {
    table.row({std::move(name), figure(sampled), held_out ? figure(*held_out) : std::string("-")});
  };
  const auto number = [&](std::string name, std::int64_t VerbatimShare::*member) {
    row(std::move(name), [&](const VerbatimShare& share) { return with_commas(share.*member); });
  };
  number(chats ? "answers" : "texts", &VerbatimShare::texts);
  number("tokens", &VerbatimShare::tokens);
  number("characters", &VerbatimShare::characters);
  for (std::size_t i = 0; i < kVerbatimGrams.size(); ++i)
    row(fmt::format("sequences of {} tokens", kVerbatimGrams[i]), [&](const VerbatimShare& share) {
      return share.grams[i] > 0 ? percent(share.gram_share(i)) : std::string("-");
    });
  row(fmt::format("text in runs of {} or more characters", kVerbatimRun),
      [](const VerbatimShare& share) { return percent(share.run_share()); });
  row(chats ? "whole answers" : "whole documents", [](const VerbatimShare& share) {
    return share.whole > 0 ? percent(share.whole_share()) : std::string("-");
  });
  number("longest run, in characters", &VerbatimShare::longest_run);
  row("longest run of a text, in characters, mean",
      [](const VerbatimShare& share) { return fmt::format("{:.1f}", share.mean_run); });
  std::string text = fmt::format("found in the {} tokens of training data:\n{}",
                                 with_commas(static_cast<long long>(training_tokens)), table.text(width));
  if (!longest.empty()) text += "\nthe longest runs of sampled text that occur in the training data:\n";
  for (const VerbatimRun& run : longest)
    text += fmt::format("\n{} characters, {} tokens, in document {} after {} characters:\n{}\n",
                        with_commas(run.characters), with_commas(run.tokens),
                        with_commas(static_cast<long long>(run.document)),
                        with_commas(static_cast<long long>(run.offset)), quoted(run.text));
  return text;
}

Json Memorization::to_json() const {
  Json runs = Json::array();
  for (const VerbatimRun& run : longest)
    runs.push(Json::object()
                  .set("text", shortened(run.text, kShownBytes))
                  .set("characters", run.characters)
                  .set("tokens", run.tokens)
                  .set("document", run.document)
                  .set("offset", run.offset));
  return Json::object()
      .set("training_tokens", training_tokens)
      .set("sampled", share_json(sampled))
      .set("held_out", held_out ? share_json(*held_out) : Json())
      .set("repeats_training_data", repeats_training_data())
      .set("longest", runs);
}

Memorization measure_memorization(Model& model, const Tokenizer& tokenizer, const MemorizationData& data,
                                  const MemorizationOptions& options, const ProgressOutput& progress,
                                  const Interrupt* interrupt) {
  const VerbatimAlphabet alphabet(tokenizer);
  const std::vector<Piece> pieces =
      pieces_of(data, tokenizer, alphabet.bos, model.config().context, options.tokens);
  const Texts samples = generate_texts(model, tokenizer, pieces, data, options, progress, interrupt);
  Texts held_out;
  if (data.held_out)
    for (const Piece& piece : pieces) held_out.add(piece.text, piece.is_whole);
  std::vector<std::vector<TokenId>> all = samples.texts;
  all.insert(all.end(), held_out.texts.begin(), held_out.texts.end());

  Memorization result{.chats = data.chats};
  VerbatimSearch search(all, alphabet);
  data.read_training([&](std::span<const TokenId> tokens) {
    search.read(tokens);
    result.training_tokens += tokens.size();
  });
  const std::vector<VerbatimMatches> matches = search.finish();
  const auto of_samples = std::span(matches).first(samples.texts.size());
  result.sampled = share_of(samples, of_samples, alphabet);
  if (data.held_out)
    result.held_out = share_of(held_out, std::span(matches).subspan(samples.texts.size()), alphabet);
  result.longest = longest_runs(samples, of_samples, alphabet, tokenizer, options.examples);
  return result;
}

void read_all(const TokenSet& set, const TokenSink& sink, const ProgressOutput& progress,
              const Interrupt* interrupt) {
  ProgressBar bar(progress, "searching", "tokens", set.size());
  std::vector<TokenId> block;
  for (std::uint64_t begin = 0; begin < set.size(); begin += block.size()) {
    if (interrupt) interrupt->throw_if_interrupted();
    block.resize(std::min(set.size() - begin, kBlockTokens));
    set.copy(begin, block);
    sink(block);
    bar.update(begin + block.size());
  }
}

}  // namespace thimble
