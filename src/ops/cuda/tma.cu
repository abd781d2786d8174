#include "ops/cuda/wgmma.cuh"

namespace thimble::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, asked of the runtime: the plugin is not linked with the driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  checked(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) refuse("the driver has no cuTensorMapEncodeTiled", found);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const View& view, int size, int rows) {
  static const Encode encode = find_encode();
  const int columns = size < 64 ? size : 64;
  const std::int64_t stride = view.rows > 1 ? view.stride : view.cols;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(view.cols), static_cast<cuuint64_t>(view.rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map = {};
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, view.data, extent, row_bytes, box,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) refuse("cuTensorMapEncodeTiled failed", status);
  return map;
}

}  // namespace thimble::cuda
