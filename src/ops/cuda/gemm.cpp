#include "ops/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "base/error.h"

namespace thimble::cuda {

namespace {

using MatmulDesc = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(const Tensor& t) {
  check(t.dtype == DType::f32 || t.dtype == DType::bf16, "[cuda] a matrix product of {}",
        dtype_name(t.dtype));
  return t.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two, up to 16, that divides a matrix's address and the bytes between its rows.
std::uint32_t alignment_of(const Tensor& t) {
  const auto bytes = static_cast<std::uintptr_t>(t.stride * dtype_bytes(t.dtype));
  const std::uintptr_t both = reinterpret_cast<std::uintptr_t>(t.data) | (t.rows > 1 ? bytes : 0) | 16;
  return static_cast<std::uint32_t>(both & -both);
}

// cuBLAS counts columns first: a row-major matrix is the transposed one to it.
Layout layout_of(const Tensor& t) {
  cublasLtMatrixLayout_t layout = nullptr;
  checked(cublasLtMatrixLayoutCreate(&layout, type_of(t), static_cast<std::uint64_t>(t.cols),
                                     static_cast<std::uint64_t>(t.rows), t.stride),
          "cublasLtMatrixLayoutCreate");
  return Layout(layout);
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

// c^T = op(b)^T op(a)^T: cuBLAS's first matrix is b, its second a.
class Plan {
 public:
  Plan(CudaRuntime& runtime, const Operand& a, const Operand& b, const Tensor& c)
      : first_(layout_of(b.matrix)), second_(layout_of(a.matrix)), result_(layout_of(c)) {
    cublasLtMatmulDesc_t desc = nullptr;
    checked(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    desc_.reset(desc);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);

    cublasLtMatmulPreference_t made = nullptr;
    checked(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{CudaRuntime::kWorkspaceBytes});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b.matrix));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.matrix));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c));

    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(runtime.blas(), desc_.get(), first_.get(), second_.get(),
                                       result_.get(), result_.get(), preference.get(), 1, &best, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return;
    checked(status, "cublasLtMatmulAlgoGetHeuristic");
    algorithm_ = best.algo;
  }

  bool has_kernel() const { return algorithm_.has_value(); }

  void run(CudaRuntime& runtime, const Tensor& a, const Tensor& b, const Tensor& c, bool add) const {
    const float one = 1, beta = add ? 1.0f : 0.0f;
    checked(cublasLtMatmul(runtime.blas(), desc_.get(), &one, b.data, first_.get(), a.data, second_.get(),
                           &beta, c.data, result_.get(), c.data, result_.get(), &*algorithm_,
                           runtime.workspace(), CudaRuntime::kWorkspaceBytes, runtime.stream()),
            "cublasLtMatmul");
  }

 private:
  Layout first_, second_, result_;
  MatmulDesc desc_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

using Key = std::array<std::int64_t, 15>;

Key key_of(const Operand& a, const Operand& b, const Tensor& c) {
  Key key = {};
  std::size_t place = 0;
  for (const Tensor* t : {&a.matrix, &b.matrix, &c}) {
    for (const std::int64_t fact : {t->rows, t->cols, t->stride, std::int64_t{alignment_of(*t)}})
      key[place++] = fact;
    key[place - 1] |= static_cast<std::int64_t>(t->dtype) << 8;
  }
  key[place++] = a.transposed;
  key[place++] = b.transposed;
  return key;
}

// One per Context.
struct GemmPlans {
  std::map<Key, Plan> plans;
};

void check_shapes(const Operand& a, const Operand& b, const Tensor& c) {
  const std::int64_t M = a.transposed ? a.matrix.cols : a.matrix.rows,
                     K = a.transposed ? a.matrix.rows : a.matrix.cols;
  const std::int64_t N = b.transposed ? b.matrix.rows : b.matrix.cols,
                     L = b.transposed ? b.matrix.cols : b.matrix.rows;
  check(K == L && c.rows == M && c.cols == N, "[cuda] [{}, {}] times [{}, {}] into [{}, {}]", M, K, L, N,
        c.rows, c.cols);
  check(a.matrix.dtype == b.matrix.dtype, "[cuda] a product of {} and {}", dtype_name(a.matrix.dtype),
        dtype_name(b.matrix.dtype));
}

}  // namespace

void gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add) {
  check_shapes(a, b, c);
  if (c.count() == 0) return;
  CudaRuntime& runtime = runtime_of(context);
  auto& plans = context.state<GemmPlans>().plans;
  const Key key = key_of(a, b, c);
  auto place = plans.find(key);
  if (place == plans.end()) place = plans.try_emplace(key, runtime, a, b, c).first;
  if (place->second.has_kernel())
    place->second.run(runtime, a.matrix, b.matrix, c, add);
  else
    plain_gemm(context, a, b, c, add);
}

}  // namespace thimble::cuda
