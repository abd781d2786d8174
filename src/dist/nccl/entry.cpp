// The NCCL plugin: sums between GPUs.
//
// NCCL's work runs on a second stream: it starts after the work queued before it and runs
// concurrently with the work queued after it. Events express both dependencies, and a capture keeps
// them as edges of its graph.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "dist/communicator.h"

namespace thimble::nccl {

namespace {

void checked(ncclResult_t code, const char* call, ncclComm_t comm = nullptr) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  fail(Hint{"set NCCL_DEBUG=INFO for details"}, "[nccl] {}: {}. {}", call, ncclGetErrorString(code),
       ncclGetLastError(comm));
}

void checked(cudaError_t code, const char* call) {
  check(code == cudaSuccess, "[nccl] {}: {}", call, cudaGetErrorString(code));
}

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(const std::string& id, int rank, int size, std::shared_ptr<DeviceRuntime> runtime)
      : rank_(rank), size_(size), runtime_(std::move(runtime)) {
    ncclUniqueId bytes;
    check(id.size() == sizeof(bytes), "[nccl] got an id of {} bytes, expected {}", id.size(), sizeof(bytes));
    std::memcpy(&bytes, id.data(), sizeof(bytes));
    main_ = static_cast<cudaStream_t>(runtime_->native_queue());
    check(main_ != nullptr, "[nccl] the device has no CUDA stream");
    // Fixes the order of summands for all sizes and timings: see dist/communicator.h.
    setenv("NCCL_ALGO", "Ring", 0);
    checked(ncclCommInitRank(&comm_, size, bytes, rank), "ncclCommInitRank");
    checked(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    checked(cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    checked(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }

  ~NcclCommunicator() override {
    if (side_) cudaStreamSynchronize(side_);
    if (comm_) ncclCommDestroy(comm_);
    if (end_) cudaEventDestroy(end_);
    if (begin_) cudaEventDestroy(begin_);
    if (side_) cudaStreamDestroy(side_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void sum(std::span<const std::span<float>> pieces) override {
    follow_main();
    checked(ncclGroupStart(), "ncclGroupStart");
    for (const std::span<float> piece : pieces)
      checked(ncclAllReduce(piece.data(), piece.data(), piece.size(), ncclFloat32, ncclSum, comm_, side_),
              "ncclAllReduce", comm_);
    checked(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }

  void gather(std::span<const OwnedFloats> parts) override {
    follow_main();
    checked(ncclGroupStart(), "ncclGroupStart");
    for (const OwnedFloats& part : parts)
      checked(ncclBroadcast(part.values.data(), part.values.data(), part.values.size(), ncclFloat32,
                            part.rank, comm_, side_),
              "ncclBroadcast", comm_);
    checked(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }

  void join() override {
    checked(cudaEventRecord(end_, side_), "cudaEventRecord");
    checked(cudaStreamWaitEvent(main_, end_, 0), "cudaStreamWaitEvent");
  }

  void check_errors() override {
    ncclResult_t state = ncclSuccess;
    checked(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    checked(state, "a collective", comm_);
  }

 private:
  void follow_main() {
    checked(cudaEventRecord(begin_, main_), "cudaEventRecord");
    checked(cudaStreamWaitEvent(side_, begin_, 0), "cudaStreamWaitEvent");
  }

  int rank_, size_;
  std::shared_ptr<DeviceRuntime> runtime_;
  cudaStream_t main_ = nullptr, side_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

std::string library() {
  int version = 0;
  checked(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string make_id() {
  ncclUniqueId id;
  checked(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

}  // namespace

}  // namespace thimble::nccl

extern "C" __attribute__((visibility("default"))) const void* thimble_nccl_plugin() {
  using namespace thimble;
  static const NcclPlugin plugin{
      .abi = kDistAbi,
      .version = THIMBLE_VERSION,
      .library = nccl::library,
      .make_id = nccl::make_id,
      .join = [](const std::string& id, int rank, int size,
                 const std::shared_ptr<DeviceRuntime>& runtime) -> std::unique_ptr<DeviceCommunicator> {
        return std::make_unique<nccl::NcclCommunicator>(id, rank, size, runtime);
      },
  };
  return &plugin;
}
