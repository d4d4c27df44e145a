// The kernels that compute paged_attention, and its gradient. One serves all rows of an engine, in prefill, decode and the trainer: which one
// it is may change bits.
#pragma once
#include <string>
#include <type_traits>

#include "base/error.h"
#include "cuda/attention/attention_backward.h"
#include "cuda/attention/paged_attention.h"
#include "cuda/common/variant.h"

namespace tandem::cuda {

struct AttentionVariant {
  AttentionKernel kernel;
  const char* name;
  int least_major, most_major;  // compute capabilities that it runs on
  void (*launch)(const PagedAttention& args, cudaStream_t stream);
  // Of keys (dk and dv), or of queries (dq).
  void (*launch_backward)(const AttentionBackward& args, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream);
};

// What paged_attention() checks is checked.
void attention_mma(const PagedAttention& args, cudaStream_t stream);    // mma.sync
void attention_wgmma(const PagedAttention& args, cudaStream_t stream);  // Hopper's own instructions

// What attention_backward_queries() and attention_backward_keys() check is checked.
void attention_backward_mma(const AttentionBackward& args, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream);
void attention_backward_wgmma(const AttentionBackward& args, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream);

const AttentionVariant& variant_of(AttentionKernel kernel);

// By its name in TANDEM_CUDA_ATTENTION, as choose_variant (common/variant.h).
AttentionKernel attention_kernel(const char* name, int major, int minor);

// call(std::integral_constant<int, dim>). Throws Error(kUnsupported) for a size of heads that has no kernels.
template <class Call>
void by_dim(int64_t dim, const char* name, const Call& call) {
  switch (dim) {
    case 32: return call(std::integral_constant<int, 32>{});
    case 64: return call(std::integral_constant<int, 64>{});
    case 96: return call(std::integral_constant<int, 96>{});
    case 128: return call(std::integral_constant<int, 128>{});
    default: throw Error(ErrorKind::kUnsupported, std::string(name) + ": heads of this size have no kernel");
  }
}

}  // namespace tandem::cuda
