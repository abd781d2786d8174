// Continuous batching: each step makes one call of the model for all active requests.
//
//   Batcher batcher(model, tokenizer.get(), {.slots = 8});      // allocates the whole KV cache
//   const RequestId id = batcher.submit({.prompt = ids, .stop_ids = end_ids(*tokenizer)});
//   while (batcher.busy())
//     for (const Event& event : batcher.step()) show(event);
//
// A slot stores one sequence: its tokens, and their keys and values in the cache. Each step
// generates one token for every sequence whose prompt is processed; the remaining rows of the call
// process prompts, in fixed blocks. Sequences join and leave between steps. If no slot is free,
// requests queue in order of arrival.
//
// A slot keeps its tokens after its sequence ends (prefix cache). A new request reuses the slot
// that shares the longest prefix with its prompt, or a copy of that prefix if the slot is in use.
// If another request is currently processing the same prefix, the new request waits for it, unless
// that saves fewer than 64 tokens. Layers with a window keep only a ring of the last positions
// (model/kv_cache.h), so a model that has them reuses a prefix only if the slot has read few tokens
// after it.
//
// The result of a sample depends only on its request, not on other requests, the slot or the cache
// contents. On the CPU results are bit-identical, because decoding is batch-invariant
// (ops/attention.h). On a GPU they agree up to rounding, and are bit-identical as long as no call
// has more than 64 rows (model/model.h).
//
// Threads: submit, cancel and step must be called by one thread, the one that runs OpenMP loops. A
// server's other threads pass requests and cancellations through a queue that this thread drains
// between steps. check_request() may be called by any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "infer/request.h"
#include "infer/sequence.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Length of the common prefix of two token sequences.
std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

// The tokens stored in each slot, and the choice of a slot for a new prompt.
class Slots {
 public:
  explicit Slots(std::int64_t count, CacheRing ring = {})
      : slots_(static_cast<std::size_t>(count)), ring_(ring) {}

  std::int64_t count() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free_count() const;

  // The slot, in use or free, that shares the longest prefix with `prompt` and can continue from
  // it. length is 0 if there is none.
  struct Prefix {
    std::int64_t slot = -1, length = 0;
  };
  Prefix longest_prefix(std::span<const TokenId> prompt) const;

  // Takes a free slot for a prompt whose longest cached prefix is `prefix` and marks it as in use.
  // If slot `prefix.slot` is free and the prefix is at least half of its tokens, returns that slot,
  // truncated to the prefix. Otherwise empties and returns the least recently used free slot; the
  // caller then copies the cache entries of the prefix, if any, and calls copied(). Returns -1 if
  // no slot is free.
  std::int64_t take(Prefix prefix);
  void copied(std::int64_t slot, Prefix prefix);

  // Keeps the tokens that `next` begins with too, but not its last token, which must be processed
  // again for its logits.
  void keep_prefix_of(std::int64_t slot, std::span<const TokenId> next);
  void append(std::int64_t slot, TokenId token);
  void release(std::int64_t slot);  // keeps the tokens for reuse
  const std::vector<TokenId>& tokens(std::int64_t slot) const { return at(slot).tokens; }
  std::int64_t size(std::int64_t slot) const { return static_cast<std::int64_t>(tokens(slot).size()); }

 private:
  struct Slot {
    std::vector<TokenId> tokens;  // whose keys and values are in the cache
    std::int64_t ring_begin = 0;  // the first position whose keys and values the rings have
    bool in_use = false;
    std::uint64_t released = 0;  // sequence number of the last release
  };
  std::int64_t oldest_free() const;
  bool continues_from(const Slot& slot, std::int64_t length) const;
  static void truncate(Slot& slot, std::int64_t length);
  const Slot& at(std::int64_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  Slot& at(std::int64_t slot) { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
  CacheRing ring_;
  std::uint64_t releases_ = 0;
};

struct BatcherOptions {
  std::int64_t slots = 1;
  std::int64_t rows_per_step = 0;  // prompt and generated rows; 0: the device's default
};

class Batcher {
 public:
  // `model` and `tokenizer` must outlive the batcher. With `tokenizer` == nullptr, events contain
  // tokens but no text.
  Batcher(Model& model, const Tokenizer* tokenizer, const BatcherOptions& options = {});
  ~Batcher();

  // Queues the request; it starts at the next step that has a free slot. Throws what check_request
  // throws.
  RequestId submit(Request request);

  // Frees the request's slots immediately. Returns the last event of each sample that had not
  // ended: finish == cancelled, with any text held back so far. Returns no events for a finished or
  // unknown request.
  std::vector<Event> cancel(RequestId id);

  // Makes at most one call of the model and returns the resulting events. An error in one sample
  // (non-finite logits) is reported in its event's `error`. An exception means that the whole batch
  // failed.
  std::vector<Event> step();

  bool busy() const { return !waiting_.empty() || !active_.empty(); }
  std::size_t waiting() const { return waiting_.size(); }  // samples that wait for a slot
  std::size_t active() const { return active_.size(); }    // samples that have a slot
  std::int64_t slots() const { return slots_.count(); }
  const Model& model() const { return model_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }

 private:
  void admit();
  bool should_wait(const Sequence& sequence, std::span<const TokenId> reusable, std::int64_t cached) const;
  void plan_rows();
  void add_rows(Sequence& sequence, std::int64_t count);
  void take_logits(const Tensor& logits, std::vector<Event>& events);
  void drop_ended();

  Model& model_;
  const Tokenizer* tokenizer_;
  BatcherOptions options_;
  KvCache cache_;
  Slots slots_;
  RequestId last_id_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> active_;  // in order of arrival
  std::vector<DecodeRow> rows_;
  // Sequence and position of each row of logits.
  std::vector<std::pair<Sequence*, std::int64_t>> logit_rows_;
};

}  // namespace thimble
