#include "ops/cuda/runtime.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace thimble::cuda {

void fail_call(const char* call, const char* why, const Here& where) {
  const char* slash = std::strrchr(where.file_name(), '/');
  // Launch failures were observed while other processes used the same GPU. Xid messages in the
  // kernel log give the cause.
  const bool gave_up = std::strcmp(why, cudaGetErrorString(cudaErrorLaunchFailure)) == 0;
  Hint hint;
  if (gave_up)
    hint.text =
        "check whether other programs use the same GPU, and search the kernel log (dmesg) for Xid messages";
  fail(hint, "[cuda] {} failed: {} ({}:{})", call, why, slash ? slash + 1 : where.file_name(), where.line());
}

void refuse(const char* what, std::int64_t found) {
  fail("[cuda] {}, got {}", what, found);
}

namespace {

// Checks the driver and the GPU before other calls, which would give less specific errors.
void check_gpu(int gpu) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorSystemDriverMismatch)
    fail(Hint{"install NVIDIA's driver (580 or newer for CUDA 13), or use --device cpu"},
         "there is no suitable NVIDIA driver: {}", cudaGetErrorString(status));
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    fail(Hint{"check that nvidia-smi lists a GPU and CUDA_VISIBLE_DEVICES does not hide it, or use --device "
              "cpu"},
         "the NVIDIA driver is installed, but this process cannot use any GPU");
  checked(status, "cudaGetDeviceCount");
  check(gpu >= 0 && gpu < count, "there is no GPU {}: this process can use {}", gpu, count);
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Blas make_blas() {
  cublasLtHandle_t handle = nullptr;
  checked(cublasLtCreate(&handle), "cublasLtCreate");
  return Blas(handle);
}

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) : stream_(stream) {
    cudaEvent_t event = nullptr;
    checked(cudaEventCreate(&event), "cudaEventCreate");
    event_.reset(event);
  }
  void record() override { checked(cudaEventRecord(event_.get(), stream_), "cudaEventRecord"); }
  bool done() const override {
    const cudaError_t status = cudaEventQuery(event_.get());
    if (status == cudaErrorNotReady) return false;
    checked(status, "cudaEventQuery");
    return true;
  }
  void wait() const override { checked(cudaEventSynchronize(event_.get()), "cudaEventSynchronize"); }
  double milliseconds_since(const DeviceEvent& earlier) const override {
    float milliseconds = 0;
    checked(cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaEvent&>(earlier).event_.get(),
                                 event_.get()),
            "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaStream_t stream_;
  Event event_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<CudaRuntime> runtime, const Graph& graph) : runtime_(std::move(runtime)) {
    checked(cudaGraphGetNodes(graph.get(), nullptr, &nodes_), "cudaGraphGetNodes");
    cudaGraphExec_t run = nullptr;
    checked(cudaGraphInstantiate(&run, graph.get(), 0), "cudaGraphInstantiate");
    run_.reset(run);
  }
  void launch() override { checked(cudaGraphLaunch(run_.get(), runtime_->stream()), "cudaGraphLaunch"); }
  std::int64_t nodes() const override { return static_cast<std::int64_t>(nodes_); }

 private:
  std::shared_ptr<CudaRuntime> runtime_;  // owns the memory and stream that the graph uses
  GraphRun run_;
  std::size_t nodes_ = 0;
};

}  // namespace

CudaRuntime::CudaRuntime(int gpu) : gpu_(gpu) {
  check_gpu(gpu);
  checked(cudaSetDevice(gpu), "cudaSetDevice");
  checked(cudaGetDeviceProperties(&properties_, gpu), "cudaGetDeviceProperties");
  check(properties_.major >= 8, Hint{"use --device cpu"},
        "{} has compute capability {}.{}; thimble needs 8.0 or newer", properties_.name, properties_.major,
        properties_.minor);
  stream_ = make_stream();
  blas_ = make_blas();
  workspace_ = allocate(kWorkspaceBytes);
  check(workspace_ != nullptr, "{} is out of memory: expected {} free bytes for the cuBLAS workspace",
        properties_.name, kWorkspaceBytes);
}

CudaRuntime::~CudaRuntime() {
  if (workspace_) release(workspace_, kWorkspaceBytes);
}

DeviceFacts CudaRuntime::facts() const {
  int driver = 0, runtime = 0;
  checked(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  checked(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const std::size_t blas = cublasLtGetVersion();
  DeviceFacts facts;
  facts.name = properties_.name;
  facts.versions = fmt::format("driver for CUDA {}.{}, runtime {}.{}, cuBLASLt {}.{}.{}", driver / 1000,
                               driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, blas / 10000,
                               blas / 100 % 100, blas % 100);
  facts.compute_major = properties_.major;
  facts.compute_minor = properties_.minor;
  facts.multiprocessors = properties_.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties_.totalGlobalMem);
  facts.available_bytes = available_bytes();
  facts.l2_bytes = properties_.l2CacheSize;
  facts.bf16 = true;
  return facts;
}

std::byte* CudaRuntime::allocate(std::int64_t bytes) {
  checked(cudaSetDevice(gpu_), "cudaSetDevice");  // per thread
  void* block = nullptr;
  const cudaError_t status = cudaMalloc(&block, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the error, so that the next call does not report it
    return nullptr;
  }
  checked(status, "cudaMalloc");
  const std::int64_t allocated = allocated_ += bytes;
  std::int64_t peak = peak_;
  while (peak < allocated && !peak_.compare_exchange_weak(peak, allocated)) {
  }
  zero(block, bytes);
  return static_cast<std::byte*>(block);
}

void CudaRuntime::release(std::byte* block, std::int64_t bytes) noexcept {
  cudaStreamSynchronize(stream_.get());  // queued work may still use the block
  cudaFree(block);
  allocated_ -= bytes;
}

std::int64_t CudaRuntime::available_bytes() const {
  std::size_t free = 0, total = 0;
  checked(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

void CudaRuntime::upload(void* device, const void* host, std::int64_t bytes) {
  checked(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream()),
          "cudaMemcpyAsync to the device");
}

void CudaRuntime::download(void* host, const void* device, std::int64_t bytes) {
  checked(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream()),
          "cudaMemcpyAsync from the device");
}

void CudaRuntime::copy(void* to, const void* from, std::int64_t bytes) {
  checked(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync on the device");
}

void CudaRuntime::zero(void* device, std::int64_t bytes) {
  checked(cudaMemsetAsync(device, 0, static_cast<std::size_t>(bytes), stream()), "cudaMemsetAsync");
}

void CudaRuntime::synchronize() {
  checked(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

std::byte* CudaRuntime::allocate_pinned(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  checked(cudaMallocHost(&block, static_cast<std::size_t>(bytes)), "cudaMallocHost");
  std::memset(block, 0, static_cast<std::size_t>(bytes));
  return static_cast<std::byte*>(block);
}

void CudaRuntime::release_pinned(std::byte* block, std::int64_t) noexcept {
  cudaStreamSynchronize(stream_.get());
  cudaFreeHost(block);
}

std::unique_ptr<DeviceEvent> CudaRuntime::make_event() {
  return std::make_unique<CudaEvent>(stream());
}

void CudaRuntime::begin_capture() {
  checked(cudaSetDevice(gpu_), "cudaSetDevice");
  checked(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

std::unique_ptr<DeviceGraph> CudaRuntime::end_capture() {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream(), &graph);
  if (status != cudaSuccess)
    cudaGetLastError();  // clear the error, so that the next launch does not report it
  checked(status, "cudaStreamEndCapture");
  return std::make_unique<CudaGraph>(shared_from_this(), Graph(graph));
}

}  // namespace thimble::cuda
