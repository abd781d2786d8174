#include "formats/pack_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace thimble {

namespace {

constexpr int kHalvings = 7;  // of a clip's logarithm: to 3 %
constexpr float kFinest = 4, kCoarsest = 64;
constexpr double kAim = 0.99;  // of the room: the size model errs by about 1 %

QuantiseRule rule_with(int bits, float clip) {
  return clip > 0 ? QuantiseRule{.bits = bits, .clip = Clip::deviation, .deviations = clip}
                  : QuantiseRule{.bits = bits};
}

class Search {
 public:
  Search(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
         const PackScore& score, const ProgressOutput& progress, const Interrupt* interrupt)
      : source_(source),
        request_(request),
        space_(space),
        score_(score),
        interrupt_(interrupt),
        estimator_(source, request),
        bar_(progress, "searching", "rules", 0) {}

  SearchResult run() {
    const std::size_t planned = space_.bits.size() * space_.prunes.size() * (space_.clips.size() + 1);
    bar_.expect(planned + space_.measured);
    for (const int bits : space_.bits)
      for (const double prune : space_.prunes) {
        for (const float clip : space_.clips) estimate(rule_with(bits, clip), prune);
        estimate(rule_with(bits, finest_that_fits(bits, prune)), prune);
      }
    measure();
    return finish();
  }

 private:
  void estimate(const QuantiseRule& rule, double prune) {
    if (interrupt_) interrupt_->throw_if_asked();
    add(rule, prune);
    bar_.advance(1);
  }

  void add(const QuantiseRule& rule, double prune) {
    const bool known =
        std::ranges::any_of(tries_, [&](const SearchTry& t) { return t.rule == rule && t.prune == prune; });
    if (!known) tries_.push_back(tried(rule, prune));
  }

  SearchTry tried(const QuantiseRule& rule, double prune) {
    const PackEstimate estimate = estimator_.estimate(rule, prune);
    return {.rule = rule, .prune = prune, .predicted_bytes = estimate.bytes, .error = estimate.error};
  }

  bool fits(std::uint64_t predicted, double room) const {
    return static_cast<double>(predicted) * correction_ <= room * static_cast<double>(request_.budget);
  }

  // Rows clipped nearer are cut finer: the size falls as the clip grows.
  float finest_that_fits(int bits, double prune) {
    const auto clip_fits = [&](float clip) {
      if (interrupt_) interrupt_->throw_if_asked();
      return fits(estimator_.estimate(rule_with(bits, clip), prune).bytes, kAim);
    };
    float fine = kFinest, coarse = kCoarsest;
    if (clip_fits(fine)) return fine;
    for (int i = 0; i < kHalvings; ++i) {
      const float middle = std::sqrt(fine * coarse);
      (clip_fits(middle) ? coarse : fine) = middle;
    }
    return std::round(coarse * 100) / 100;
  }

  // Those that promise to lose least go first. A file that came out over the budget tells by how much the size model errs
  // with this model: from then on that is counted in, and the finest that fits is looked for again.
  void measure() {
    for (std::size_t packs = 0, fitting = 0; packs < 2 * space_.measured && fitting < space_.measured;
         ++packs) {
      std::ranges::stable_sort(tries_, {}, &SearchTry::error);
      const auto next = std::ranges::find_if(
          tries_, [&](const SearchTry& t) { return !t.bytes && fits(t.predicted_bytes, 1); });
      if (next == tries_.end()) return;
      const SearchTry& t = measured(*next);
      if (t.score) {
        ++fitting;
        bar_.advance(1);
        continue;
      }
      correction_ =
          std::max(correction_, static_cast<double>(*t.bytes) / static_cast<double>(t.predicted_bytes));
      const auto [bits, prune] = std::pair(t.rule.bits, t.prune);
      add(rule_with(bits, finest_that_fits(bits, prune)), prune);
    }
  }

  const SearchTry& measured(SearchTry& t) {
    PackRequest request = request_;
    request.options.rule = t.rule;
    request.options.prune = t.prune;
    PackResult packed = pack_model(source_, request, ProgressOutput::nowhere(), interrupt_);
    t.bytes = packed.report.self_contained_bytes();
    if (packed.report.fits()) {
      t.score = score_(packed.loaded);
      if (!best_ || *t.score < best_->score) best_.emplace(Best{*t.score, std::move(packed)});
    }
    return t;
  }

  SearchResult finish() {
    const auto smallest = std::ranges::min_element(tries_, {}, &SearchTry::predicted_bytes);
    check(best_.has_value(), Hint{"a larger --budget, or a smaller model"},
          "no rule fits: the smallest takes about {} bytes, the budget is {}",
          with_commas(std::llround(static_cast<double>(smallest->predicted_bytes) * correction_)),
          with_commas(static_cast<long long>(request_.budget)));
    const auto rank = [](const SearchTry& t) { return t.score ? 0 : t.bytes ? 1 : 2; };
    std::ranges::stable_sort(tries_, [&](const SearchTry& a, const SearchTry& b) {
      return rank(a) != rank(b) ? rank(a) < rank(b) : a.score && *a.score < *b.score;
    });
    return {.tries = std::move(tries_), .best = 0, .packed = std::move(best_->packed)};
  }

  struct Best {
    double score;
    PackResult packed;
  };

  const ModelFile& source_;
  const PackRequest& request_;
  const SearchSpace& space_;
  const PackScore& score_;
  const Interrupt* interrupt_;
  PackEstimator estimator_;
  ProgressBar bar_;
  double correction_ = 1;  // what files took over what the size model said, where that was more
  std::vector<SearchTry> tries_;
  std::optional<Best> best_;
};

}  // namespace

SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt) {
  return Search(source, request, space, score, progress, interrupt).run();
}

}  // namespace thimble
