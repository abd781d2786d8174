// CUDA as a DeviceRuntime, and shared helpers of the plugin: checked calls, owning handles.
//
// Errors are thrown from runtime.cpp: nvcc cannot compile base/error.h, so kernel files call these
// functions.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <source_location>
#include <type_traits>

#include "tensor/device.h"

namespace thimble::cuda {

using Here = std::source_location;

#ifdef THIMBLE_SM90A  // cmake/Cuda.cmake: one of the architectures is 90a
inline constexpr bool kHasHopperCode = true;
#else
inline constexpr bool kHasHopperCode = false;
#endif

// "[cuda] cudaMalloc failed: out of memory (runtime.cpp:120)"
[[noreturn]] void fail_call(const char* call, const char* why, const Here& where);
// "[cuda] [attention] expected a head size of at most 128, got 256"
[[noreturn]] void refuse(const char* what, std::int64_t found);

inline void checked(cudaError_t status, const char* call, const Here& where = Here::current()) {
  if (status != cudaSuccess) [[unlikely]]
    fail_call(call, cudaGetErrorString(status), where);
}
inline void checked(cublasStatus_t status, const char* call, const Here& where = Here::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail_call(call, cublasLtGetStatusString(status), where);
}

// Call after kernel<<<...>>>; throws if the launch failed.
inline void launched(const char* kernel, const Here& where = Here::current()) {
  checked(cudaGetLastError(), kernel, where);
}

// An owning handle of a CUDA pointer type.
template <class Pointer, auto destroy>
struct Destroy {
  void operator()(Pointer handle) const { destroy(handle); }
};
template <class Pointer, auto destroy>
using Handle = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy<Pointer, destroy>>;

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using Graph = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphRun = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;
using Blas = Handle<cublasLtHandle_t, cublasLtDestroy>;

class CudaRuntime final : public DeviceRuntime, public std::enable_shared_from_this<CudaRuntime> {
 public:
  explicit CudaRuntime(int gpu);
  ~CudaRuntime() override;

  Device device() const override { return Device::cuda; }
  DeviceFacts facts() const override;

  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* block, std::int64_t bytes) noexcept override;
  std::int64_t available_bytes() const override;
  std::int64_t peak_bytes() const override { return peak_; }

  void upload(void* device, const void* host, std::int64_t bytes) override;
  void download(void* host, const void* device, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* device, std::int64_t bytes) override;
  void synchronize() override;

  std::byte* allocate_pinned(std::int64_t bytes) override;
  void release_pinned(std::byte* block, std::int64_t bytes) noexcept override;

  std::unique_ptr<DeviceEvent> make_event() override;
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;

  void* native_queue() const override { return stream_.get(); }
  // True if the GPU is an sm_90 and the plugin has code for sm_90a.
  bool hopper() const { return kHasHopperCode && properties_.major == 9 && properties_.minor == 0; }
  cudaStream_t stream() const { return stream_.get(); }
  cublasLtHandle_t blas() const { return blas_.get(); }
  void* workspace() const { return workspace_; }  // kWorkspaceBytes, for GEMMs

  static constexpr std::size_t kWorkspaceBytes = 32u << 20;  // cuBLAS's recommendation for Hopper

 private:
  int gpu_;
  cudaDeviceProp properties_ = {};
  Stream stream_;
  Blas blas_;
  std::byte* workspace_ = nullptr;
  std::atomic<std::int64_t> allocated_ = 0, peak_ = 0;  // bytes
};

inline CudaRuntime& runtime_of(const Context& context) {
  return static_cast<CudaRuntime&>(*context.runtime());
}
inline cudaStream_t stream_of(const Context& context) {
  return runtime_of(context).stream();
}

}  // namespace thimble::cuda
