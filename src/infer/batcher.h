// The batcher: many requests, one model, one call of it for all of them at each step.
//
//   Batcher batcher(model, tokenizer.get(), {.slots = 8});      // all memory of the cache is taken here
//   const RequestId id = batcher.submit({.prompt = ids, .stop_ids = end_ids(*tokenizer)});
//   while (batcher.busy())
//     for (const Event& event : batcher.step()) show(event);
//
// A slot holds one sequence: its tokens, and their keys and values in the cache. Each step gives every sequence that
// generates its next token, and the rest of the call's rows to prompts, in fixed blocks. Sequences join and leave
// between steps; whoever finds no slot waits in the order of arrival.
//
// A slot remembers its tokens when its sequence ends. A new request continues the slot that shares the longest prefix
// with its prompt, or a copy of that prefix if the slot is in use. A prompt that others are just reading is waited for.
//
// What a sample says depends on its request alone: not on the others, not on the slot, not on what was cached. On the
// CPU that holds to the bit, because decoding is batch-invariant (ops/attention.h); on a GPU to rounding, and to
// the bit while no call has more than 64 rows (model/model.h).
//
// One thread calls submit, cancel and step (it is the one that enters OpenMP). A server's other threads leave requests
// and cancellations in a queue that this thread empties between steps; check_request() may be called anywhere.
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

// Slots: which tokens each of them holds, and which one a new prompt should take.
// How many tokens two texts begin with in common.
std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

class Slots {
 public:
  explicit Slots(std::int64_t count) : slots_(static_cast<std::size_t>(count)) {}

  std::int64_t count() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free_count() const;

  // Where the longest prefix of `wanted` lies, in use or not. length 0: nowhere.
  struct Prefix {
    std::int64_t slot = -1, length = 0;
  };
  Prefix longest_prefix(std::span<const TokenId> wanted) const;

  // A free slot for a text whose prefix lies at `prefix`: that slot itself if most of what it holds is the prefix,
  // else the one unused for the longest time. -1: none is free. Marks it as in use and cuts it to the prefix, or
  // empties it: then the prefix is to be copied, and copied() told.
  std::int64_t take(Prefix prefix);
  void copied(std::int64_t slot, Prefix prefix);

  void append(std::int64_t slot, TokenId token) { at(slot).tokens.push_back(token); }
  void release(std::int64_t slot);  // the tokens stay
  const std::vector<TokenId>& tokens(std::int64_t slot) const { return at(slot).tokens; }
  std::int64_t size(std::int64_t slot) const { return static_cast<std::int64_t>(tokens(slot).size()); }

 private:
  struct Slot {
    std::vector<TokenId> tokens;  // computed: their keys and values lie in the cache
    bool in_use = false;
    std::uint64_t released = 0;  // when, counted in releases
  };
  std::int64_t oldest_free() const;
  const Slot& at(std::int64_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  Slot& at(std::int64_t slot) { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
  std::uint64_t releases_ = 0;
};

struct BatcherOptions {
  std::int64_t slots = 1;
  std::int64_t rows_per_step = 0;  // of prompts and generating sequences together; 0: what suits the device
};

class Batcher {
 public:
  // Both outlive it. Without a tokenizer (nullptr) there are tokens and no text.
  Batcher(Model& model, const Tokenizer* tokenizer, const BatcherOptions& options = {});
  ~Batcher();

  // Joins at the next step with a free slot. Throws what check_request throws.
  RequestId submit(Request request);

  // Frees its slots now. Returns the last events of those samples that had not ended: finish == cancelled, with the
  // text that was held back. Nothing for a request that is done or was never there.
  std::vector<Event> cancel(RequestId id);

  // One call of the model at most; what came of it. Trouble with one sample
  // (logits that are not finite) is its event's `error`; what is thrown is a failure of the whole.
  std::vector<Event> step();

  bool busy() const { return !waiting_.empty() || !active_.empty(); }
  std::size_t waiting() const { return waiting_.size(); }  // samples without a slot
  std::size_t active() const { return active_.size(); }    // samples with one
  std::int64_t slots() const { return slots_.count(); }
  const Model& model() const { return model_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }

 private:
  void admit();
  bool better_wait(const Sequence& sequence, std::span<const TokenId> reusable, std::int64_t cached) const;
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
  std::vector<std::unique_ptr<Sequence>> active_;  // in the order of arrival
  std::vector<DecodeRow> rows_;
  std::vector<std::pair<Sequence*, std::int64_t>> wanted_;  // whose logits come, and of which position
};

}  // namespace thimble
