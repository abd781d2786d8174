#include "formats/pack_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/table.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

// Sizes of a step in standard deviations of the row; each step costs half a bit less than the one
// before.
constexpr std::array kSteps = {0.03, 0.0425, 0.06, 0.085, 0.12, 0.17, 0.24, 0.34, 0.48, 0.68};
constexpr double kNarrowestClip = 4.5, kWidestClip = 64;

constexpr double kProbedError = 0.14;   // relative error of a probed role: visible in any score
constexpr double kAimedShare = 0.998;   // of the budget
constexpr double kFilledShare = 0.985;  // a file of this share of the budget is not refined
constexpr std::size_t kMaxPacks = 4;    // per candidate

// The rule with all steps `scale` times as large.
QuantizeRule scaled(QuantizeRule rule, double scale) {
  rule.deviations =
      static_cast<float>(std::max(std::round(rule.deviations * scale * 100) / 100, double{kNarrowestClip}));
  return rule;
}

using Rules = std::array<QuantizeRule, kPackRoles>;  // by role

// Indices of the rules of a combination, by role.
struct Combination {
  std::array<std::size_t, kPackRoles> rules = {};
  double bytes = 0, score = 0;  // expected
};

// A way to pack a combination.
struct Variant {
  const GptqFactors* gptq = nullptr;
  double prune = 0;

  bool operator==(const Variant&) const = default;
};

// The bytes that steps twice as large save: a bit of every weight, until two files tell.
struct Saved {
  double per_octave;
  double scale = 0, bytes = 0;  // of the last file

  void add(double next_scale, double next_bytes) {
    if (scale > 0 && next_scale != scale && next_bytes != bytes) {
      const double measured = (bytes - next_bytes) / std::log2(next_scale / scale);
      per_octave = std::clamp(measured, per_octave / 8, per_octave * 8);
    }
    scale = next_scale;
    bytes = next_bytes;
  }
};

class Search {
 public:
  Search(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
         const PackScore& score, const ProgressOutput& progress, const Interrupt* interrupt)
      : source_(source),
        request_(request),
        space_(space),
        score_(score),
        interrupt_(interrupt),
        table_(source.config.model),
        estimator_(source, request),
        bar_(progress, "searching", "steps", 0) {
    request_.options = {.rule = space.rules.front(), .keep = request.options.keep, .golf = false};
    request_.as_packed = request_.fit = false;
    for (const Param& param : table_.all())
      if (is_quantized(storage_of(param, request_.options)))
        quantized_weights_ += static_cast<double>(param.count());
  }

  SearchResult run() {
    bar_.expect(space_.rules.size() + space_.embedding.size() + kPackRoles + 1 + space_.measured);
    choose_codec();
    estimate();
    combine(probe());
    measure();
    return finish();
  }

 private:
  std::span<const QuantizeRule> rules_of(std::size_t role) const {
    return role == static_cast<std::size_t>(PackRole::embedding) ? space_.embedding : space_.rules;
  }

  PackOptions options_with(const Rules& rules, const Variant& variant) const {
    PackOptions options = request_.options;
    options.rule = rules[static_cast<std::size_t>(PackRole::attention)];
    options.mlp = rules[static_cast<std::size_t>(PackRole::mlp)];
    options.embedding = rules[static_cast<std::size_t>(PackRole::embedding)];
    options.gptq = variant.gptq;
    options.prune = variant.prune;
    return options;
  }

  PackEstimate estimate_with(const QuantizeRule& rule) const {
    return estimator_.estimate(options_with({rule, rule, rule}, {}), interrupt_);
  }

  void step() {
    if (interrupt_) interrupt_->throw_if_interrupted();
    bar_.advance(1);
  }

  // The codec changes the size only, so one comparison is enough.
  void choose_codec() {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    Codec best = space_.codecs.front();
    for (const Codec codec : space_.codecs) {
      if (space_.codecs.size() == 1) break;
      request_.options.codec = codec;
      const std::uint64_t bytes = estimate_with(space_.rules[space_.rules.size() / 2]).bytes;
      if (bytes < least) {
        least = bytes;
        best = codec;
      }
    }
    request_.options.codec = best;
  }

  // Fills `estimates_`: the contribution of each role under each of its rules.
  void estimate() {
    std::vector<std::pair<QuantizeRule, PackEstimate>> known;  // both lists share most rules
    for (std::size_t role = 0; role < kPackRoles; ++role)
      for (const QuantizeRule& rule : rules_of(role)) {
        auto found = std::ranges::find(known, rule, &std::pair<QuantizeRule, PackEstimate>::first);
        if (found == known.end()) {
          found = known.insert(known.end(), {rule, estimate_with(rule)});
          step();
        }
        estimates_[role].push_back(found->second.roles[role]);
        double roles = 0;
        for (const RoleEstimate& of_role : found->second.roles) roles += of_role.bytes;
        rest_bytes_ = static_cast<double>(found->second.bytes) - roles;
      }
  }

  // The increase of the score per squared relative error of each role.
  std::array<double, kPackRoles> probe() {
    const double before = score_(source_);
    step();
    std::array<double, kPackRoles> slopes{};
    for (std::size_t role = 0; role < kPackRoles; ++role) {
      const auto coarse = std::ranges::min_element(
          estimates_[role], {}, [](const RoleEstimate& e) { return std::abs(e.error() - kProbedError); });
      step();
      if (coarse->error() == 0) continue;  // the model has no matrix of this role
      const QuantizeRule& rule = rules_of(role)[static_cast<std::size_t>(coarse - estimates_[role].begin())];
      const double increase = score_(with_role_rounded(static_cast<PackRole>(role), rule)) - before;
      // A role that seems to lose nothing still counts a little, so that finer steps are preferred.
      slopes[role] = std::max(increase, 1e-4 * std::abs(before)) / (coarse->error() * coarse->error());
    }
    base_score_ = before;
    return slopes;
  }

  ModelFile with_role_rounded(PackRole role, const QuantizeRule& rule) const {
    ModelFile model = source_;
    const PackOptions options = options_with({rule, rule, rule}, {});
    for (const Param& param : table_.all()) {
      const Storage storage = storage_of(param, options);
      if (role_of(param, options) != role || !is_quantized(storage)) continue;
      const std::span<float> values = param.in(std::span(model.weights));
      unpack_tensor(param, pack_tensor(param, values, storage, rule, DType::f32), values);
    }
    return model;
  }

  // Fills `combinations_`, sorted by expected score.
  void combine(const std::array<double, kPackRoles>& slopes) {
    combinations_.push_back({.rules = {}, .bytes = rest_bytes_, .score = base_score_});
    for (std::size_t role = 0; role < kPackRoles; ++role) {
      std::vector<Combination> longer;
      for (const Combination& shorter : combinations_)
        for (std::size_t i = 0; i < estimates_[role].size(); ++i) {
          const RoleEstimate& own = estimates_[role][i];
          Combination next = shorter;
          next.rules[role] = i;
          next.bytes += own.bytes;
          next.score += slopes[role] * own.error() * own.error();
          longer.push_back(next);
        }
      combinations_ = std::move(longer);
    }
    std::ranges::stable_sort(combinations_, {}, &Combination::score);
  }

  void measure() {
    std::vector<Variant> variants;
    if (space_.rounds_to_nearest || !space_.gptq) variants.push_back({});
    if (space_.gptq) variants.push_back({.gptq = space_.gptq});
    for (Variant& variant : variants) {
      variant.prune = space_.prunes.front();
      measure(variant, 0);
    }
    const Variant winner = best_ ? Variant{best_options_.gptq, best_options_.prune} : variants.front();
    for (std::size_t i = 1; best_ && i < space_.prunes.size() && scored_ < space_.measured; ++i)
      measure({.gptq = winner.gptq, .prune = space_.prunes[i]}, 0);
    // Combinations that do not fit after all are not scored, so there is a limit to both.
    for (std::size_t next = 1; scored_ < space_.measured && next < 2 * space_.measured; ++next)
      if (!measure(winner, next)) return;
  }

  double room() const { return static_cast<double>(request_.budget); }

  // The combination of that rank among those that are expected to fit. Of those with the same bits,
  // only the best counts.
  const Combination* fitting(std::size_t rank, double correction) const {
    std::vector<const Combination*> chosen;
    const auto bits = [&](const Combination& c) {
      std::array<int, kPackRoles> out{};
      for (std::size_t role = 0; role < kPackRoles; ++role) out[role] = rules_of(role)[c.rules[role]].bits;
      return out;
    };
    for (const Combination& c : combinations_) {
      if (c.bytes * correction > room()) continue;
      if (std::ranges::any_of(chosen, [&](const Combination* other) { return bits(*other) == bits(c); }))
        continue;
      chosen.push_back(&c);
      if (chosen.size() > rank) return &c;
    }
    return nullptr;
  }

  // Packs a combination with clips scaled until the file fills the budget, and scores the largest
  // file that fits. Returns false if no combination is left.
  bool measure(const Variant& variant, std::size_t rank) {
    double& correction = correction_[variant.gptq != nullptr];
    const Combination* combination = fitting(rank, correction);
    if (!combination) return false;
    const std::size_t first = tries_.size();
    std::optional<PackResult> fitted;
    std::size_t fitted_at = 0;
    Rules rules = rules_at(*combination, 1);
    Saved saved{.per_octave = quantized_weights_ / 8};
    for (double scale = 1; tries_.size() - first < kMaxPacks;) {
      PackRequest request = request_;
      request.options = options_with(rules, variant);
      PackResult packed = pack_model(source_, request, ProgressOutput::nowhere(), interrupt_);
      const std::uint64_t bytes = packed.report.self_contained_bytes();
      tries_.push_back({.options = request.options,
                        .predicted_bytes = packed.report.predicted_bytes + request_.code_bytes,
                        .bytes = bytes,
                        .expected_score = combination->score});
      if (scale == 1) correction = static_cast<double>(bytes) / combination->bytes;
      const bool fits = packed.report.fits();
      if (fits && (!fitted || bytes > fitted->report.self_contained_bytes())) {
        fitted = std::move(packed);
        fitted_at = tries_.size() - 1;
      }
      if (fits && static_cast<double>(bytes) >= kFilledShare * room()) break;
      saved.add(scale, static_cast<double>(bytes));
      scale *= std::exp2((static_cast<double>(bytes) - kAimedShare * room()) / saved.per_octave);
      const Rules next = rules_at(*combination, scale);
      if (next == rules || request_.budget == kNoBudget) break;
      rules = next;
    }
    if (!fitted) return true;
    const double score = score_(fitted->loaded);
    tries_[fitted_at].score = score;
    ++scored_;
    step();
    if (!best_ || score < best_score_) {
      best_score_ = score;
      best_options_ = tries_[fitted_at].options;
      best_ = std::move(fitted);
    }
    return true;
  }

  Rules rules_at(const Combination& combination, double scale) const {
    Rules rules;
    for (std::size_t role = 0; role < kPackRoles; ++role) {
      const QuantizeRule& rule = rules_of(role)[combination.rules[role]];
      rules[role] = rules_of(role).size() > 1 ? scaled(rule, scale) : rule;  // a single rule is fixed
    }
    return rules;
  }

  SearchResult finish() {
    if (!best_) {
      const auto smallest = std::ranges::min_element(combinations_, {}, &Combination::bytes);
      fail(Hint{"raise --budget, or train a smaller model"},
           "no rule fits the budget: the smallest needs about {} bytes, but the budget is {}",
           with_commas(std::llround(smallest->bytes * std::max({1.0, correction_[0], correction_[1]}))),
           with_commas(static_cast<long long>(request_.budget)));
    }
    std::ranges::stable_sort(tries_, [](const SearchTry& a, const SearchTry& b) {
      return a.score && (!b.score || *a.score < *b.score);
    });
    return {.tries = std::move(tries_), .best = 0, .packed = std::move(*best_)};
  }

  const ModelFile& source_;
  PackRequest request_;
  const SearchSpace& space_;
  const PackScore& score_;
  const Interrupt* interrupt_;
  ParamTable table_;
  PackEstimator estimator_;
  ProgressBar bar_;
  std::array<std::vector<RoleEstimate>, kPackRoles> estimates_;  // by role, then by rule
  double rest_bytes_ = 0, base_score_ = 0, quantized_weights_ = 0;
  std::vector<Combination> combinations_;
  std::array<double, 2> correction_ = {1, 1};  // actual over predicted size, without and with GPTQ
  std::vector<SearchTry> tries_;
  std::size_t scored_ = 0;
  std::optional<PackResult> best_;
  double best_score_ = 0;
  PackOptions best_options_;
};

}  // namespace

std::vector<QuantizeRule> searched_rules(std::optional<int> bits) {
  std::vector<QuantizeRule> rules;
  for (const BitWidth& width : kBitWidths) {
    if (bits && width.bits != *bits) continue;
    for (const double step : kSteps) {
      const double clip = step * ((1 << (width.bits - 1)) - 1);
      if (clip >= kNarrowestClip && clip <= kWidestClip)
        rules.push_back({.bits = width.bits,
                         .clip = Clip::deviation,
                         .deviations = static_cast<float>(std::round(clip * 100) / 100)});
    }
  }
  return rules;
}

SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt) {
  return Search(source, request, space, score, progress, interrupt).run();
}

}  // namespace thimble
