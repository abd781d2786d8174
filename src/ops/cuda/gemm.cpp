#include "ops/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "base/error.h"

namespace thimble::cuda {

namespace {

using MatmulDesc = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(const Tensor& t) {
  switch (t.dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      fail("[cuda] expected a matrix product of f32, bf16 or f16, got {}", dtype_name(t.dtype));
  }
}

// One operand of a product: a matrix, or a batch of `count` matrices `distance` elements apart.
struct MatrixBatch {
  Tensor t;
  std::int64_t distance;
  std::int64_t count;
};

// The largest power of two, at most 16, that divides all addresses and row strides in bytes.
std::uint32_t alignment_of(const MatrixBatch& batch) {
  const Tensor& t = batch.t;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::uintptr_t>(elements * dtype_bytes(t.dtype));
  };
  const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(t.data) | (t.rows > 1 ? bytes(t.stride) : 0) |
                             (batch.count > 1 ? bytes(batch.distance) : 0) | 16;
  return static_cast<std::uint32_t>(all & -all);
}

template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  checked(cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof value),
          "cublasLtMatrixLayoutSetAttribute");
}

// cuBLAS is column-major: a row-major matrix is its transpose.
Layout layout_of(const MatrixBatch& batch) {
  const Tensor& t = batch.t;
  cublasLtMatrixLayout_t made = nullptr;
  checked(cublasLtMatrixLayoutCreate(&made, type_of(t), static_cast<std::uint64_t>(t.cols),
                                     static_cast<std::uint64_t>(t.rows), t.stride),
          "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (batch.count > 1) {
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch.count));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch.distance);
  }
  return layout;
}

template <class T>
void set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  checked(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  checked(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
}

MatrixBatch first_of(const Product& p) {
  return {p.b.matrix, p.b_distance, p.count};
}
MatrixBatch second_of(const Product& p) {
  return {p.a.matrix, p.a_distance, p.count};
}
MatrixBatch result_of(const Product& p) {
  return {p.result, p.result_distance, p.count};
}
// If base is not read, use the layout of the result.
MatrixBatch base_of(const Product& p) {
  return {p.base_scale != 0 ? p.base : p.result, p.result_distance, p.count};
}

// True for linear layers of a complete micro-batch, and the gradients of their inputs.
bool many_rows_short_sums(const Product& p) {
  constexpr std::int64_t kManyRows = 8192, kShortSum = 2048;
  return p.count == 1 && !p.a.transposed && p.result.rows >= kManyRows && p.a.matrix.cols <= kShortSum;
}

// Takes cuBLASLt's first offer, except for many rows and short sums. There, writing a tile takes as
// long as computing it, and tiles of 128 x 160 are 3 to 12 % faster on an H200 than the first
// offer, 256 x 128.
cublasLtMatmulHeuristicResult_t choose_offer(std::span<const cublasLtMatmulHeuristicResult_t> offers,
                                             bool small_tiles) {
  for (const cublasLtMatmulHeuristicResult_t& offer : offers) {
    std::uint32_t tile = 0;
    if (!small_tiles || offer.state != CUBLAS_STATUS_SUCCESS) continue;
    checked(cublasLtMatmulAlgoConfigGetAttribute(&offer.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                                 sizeof tile, nullptr),
            "cublasLtMatmulAlgoConfigGetAttribute");
    if (tile == CUBLASLT_MATMUL_TILE_128x160) return offer;
  }
  return offers.front();
}

// result^T = op(b)^T op(a)^T: cuBLAS's first matrix is b, its second is a.
class Plan {
 public:
  Plan(CudaRuntime& runtime, const Product& p)
      : first_(layout_of(first_of(p))), second_(layout_of(second_of(p))), result_(layout_of(result_of(p))) {
    cublasLtMatmulDesc_t desc = nullptr;
    checked(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    desc_.reset(desc);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);

    cublasLtMatmulPreference_t made = nullptr;
    checked(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{CudaRuntime::kWorkspaceBytes});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(first_of(p)));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(second_of(p)));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(base_of(p)));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(result_of(p)));

    std::array<cublasLtMatmulHeuristicResult_t, 8> offers = {};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        runtime.blas(), desc_.get(), first_.get(), second_.get(), result_.get(), result_.get(),
        preference.get(), static_cast<int>(offers.size()), offers.data(), &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return;
    checked(status, "cublasLtMatmulAlgoGetHeuristic");
    algorithm_ = choose_offer({offers.data(), static_cast<std::size_t>(found)}, many_rows_short_sums(p)).algo;
  }

  bool has_kernel() const { return algorithm_.has_value(); }

  void run(CudaRuntime& runtime, const Product& p) const {
    checked(cublasLtMatmul(runtime.blas(), desc_.get(), &p.scale, p.b.matrix.data, first_.get(),
                           p.a.matrix.data, second_.get(), &p.base_scale, base_of(p).t.data, result_.get(),
                           p.result.data, result_.get(), &*algorithm_, runtime.workspace(),
                           CudaRuntime::kWorkspaceBytes, runtime.stream()),
            "cublasLtMatmul");
  }

 private:
  Layout first_, second_, result_;
  MatmulDesc desc_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

using Key = std::array<std::int64_t, 24>;

Key key_of(const Product& p) {
  Key key = {};
  std::size_t at = 0;
  for (const MatrixBatch& batch : {first_of(p), second_of(p), result_of(p), base_of(p)}) {
    const Tensor& t = batch.t;
    for (const std::int64_t fact :
         {t.rows, t.cols, t.stride, batch.distance, std::int64_t{alignment_of(batch)}})
      key[at++] = fact;
    key[at - 1] |= static_cast<std::int64_t>(t.dtype) << 8;
  }
  key[at++] = p.a.transposed;
  key[at++] = p.b.transposed;
  key[at++] = p.count;
  return key;
}

// One per Context.
struct GemmPlans {
  std::map<Key, Plan> plans;
};

void check_shapes(const Product& p) {
  const Operand &a = p.a, &b = p.b;
  const Tensor& c = p.result;
  const std::int64_t M = a.transposed ? a.matrix.cols : a.matrix.rows,
                     K = a.transposed ? a.matrix.rows : a.matrix.cols;
  const std::int64_t N = b.transposed ? b.matrix.rows : b.matrix.cols,
                     L = b.transposed ? b.matrix.cols : b.matrix.rows;
  check(K == L && c.rows == M && c.cols == N, "[cuda] [{}, {}] times [{}, {}] does not give [{}, {}]", M, K,
        L, N, c.rows, c.cols);
  check(a.matrix.dtype == b.matrix.dtype, "[cuda] expected a product of equal dtypes, got {} and {}",
        dtype_name(a.matrix.dtype), dtype_name(b.matrix.dtype));
  check(p.base_scale == 0 ||
            (p.base.shape() == c.shape() && p.base.stride == c.stride && p.base.dtype == c.dtype),
        "[cuda] expected base to match result {}, got {}", c.shape().text(), p.base.shape().text());
}

}  // namespace

void gemm(const Context& context, const Product& product) {
  check_shapes(product);
  if (product.result.count() == 0 || product.count == 0) return;
  CudaRuntime& runtime = runtime_of(context);
  auto& plans = context.state<GemmPlans>().plans;
  const Key key = key_of(product);
  auto plan = plans.find(key);
  if (plan == plans.end()) plan = plans.try_emplace(key, runtime, product).first;
  if (plan->second.has_kernel())
    plan->second.run(runtime, product);
  else
    plain_gemm(context, product);
}

void gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add) {
  gemm(context, {.a = a, .b = b, .base = c, .result = c, .base_scale = add ? 1.0f : 0.0f});
}

}  // namespace thimble::cuda
