// Communicators that only record their calls, for tests of the order of calls, which must be the
// same on all ranks.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace thimble {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  double timeout_seconds() const override { return 1; }
  void broadcast(std::span<std::byte> bytes, int root, const std::string& what, Wait) override {
    calls.push_back(fmt::format("broadcast {} from {}: {}", bytes.size(), root, what));
  }
  void all_gather(std::span<const OwnedBytes> parts, const std::string& what, Wait) override {
    std::string owners;
    for (const OwnedBytes& part : parts) owners += fmt::format(" {}:{}", part.rank, part.bytes.size());
    calls.push_back(fmt::format("gather{}: {}", owners, what));
  }
  std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>> pieces,
                                        const std::string& what) override {
    std::size_t count = 0;
    for (const std::span<float> piece : pieces) count += piece.size();
    calls.push_back(fmt::format("sum {}: {}", count, what));
    return std::make_unique<Pending>(calls, what);
  }
  void barrier(const std::string& what, Wait) override { calls.push_back("barrier: " + what); }
  [[noreturn]] void abort(const std::string&) noexcept override { std::abort(); }

  std::vector<std::string> calls;

 private:
  struct Pending final : PendingSum {
    Pending(std::vector<std::string>& to, std::string name) : calls(to), what(std::move(name)) {}
    void wait() override { calls.push_back("wait: " + what); }
    std::vector<std::string>& calls;
    std::string what;
  };

  int rank_, size_;
};

class RecordingGpus final : public DeviceCommunicator {
 public:
  RecordingGpus(int rank, int size, const float* weights) : rank_(rank), size_(size), weights_(weights) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum(std::span<const std::span<float>> pieces) override {
    std::size_t count = 0;
    for (const std::span<float> piece : pieces) count += piece.size();
    calls.push_back(fmt::format("sum {}", count));
  }
  void gather(std::span<const OwnedFloats> parts) override {
    std::string call = "gather";
    for (const OwnedFloats& part : parts)
      call += fmt::format(" {}:{}+{}", part.rank, part.values.data() - weights_, part.values.size());
    calls.push_back(call);
  }
  void join() override { calls.push_back("join"); }
  void check_errors() override {}

  std::vector<std::string> calls;

 private:
  int rank_, size_;
  const float* weights_;  // base address for recorded offsets
};

}  // namespace thimble
