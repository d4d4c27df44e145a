// NVIDIA's own product as a peer: cuBLASLt, opened at run time where the machine has it, and never by the server. Of cublasLt.h the few
// declarations that are needed stand here, so that the toolkit that builds this need not have the library.
#pragma once
#include <dlfcn.h>

#include <memory>
#include <string>

#include "cuda/common/device_buffer.h"

namespace tandem::benchmarks {

using cuda::bf16;

class CublasLt {
 public:
  // Null where there is none, as under the emulation.
  static std::unique_ptr<CublasLt> open() {
#ifndef TANDEM_GPU_EMULATION
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return std::unique_ptr<CublasLt>(new CublasLt(library, name));
    }
#endif
    return nullptr;
  }
  ~CublasLt() { destroy_(handle_); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  const std::string& name() const { return name_; }

  // y[m][n] = x[m][k] . w[n][k]^T, or back: y[m][k] = x[m][n] . w[n][k]; by the algorithm that the library thinks best.
  class Product {
   public:
    Product(CublasLt& lt, const bf16* x, const bf16* w, float* y, int64_t m, int64_t n, int64_t k, bool back = false)
        : lt_(lt), x_(x), w_(w), y_(y) {
      // The library's matrices are column-major: it computes y^T = w . x^T, or w^T . x^T.
      constexpr int kBf16 = 14, kF32 = 0, kComputeF32 = 68, kTransposeA = 3, kMostWorkspace = 1;
      const int32_t transpose = back ? 0 : 1;
      const int64_t inputs = back ? n : k, outputs = back ? k : n;
      check(lt.create_operation_(&operation_, kComputeF32, kF32), "cublasLtMatmulDescCreate");
      check(lt.set_operation_(operation_, kTransposeA, &transpose, sizeof transpose), "cublasLtMatmulDescSetAttribute");
      check(lt.create_layout_(&weights_, kBf16, uint64_t(k), uint64_t(n), k), "cublasLtMatrixLayoutCreate");
      check(lt.create_layout_(&tokens_, kBf16, uint64_t(inputs), uint64_t(m), inputs), "cublasLtMatrixLayoutCreate");
      check(lt.create_layout_(&out_, kF32, uint64_t(outputs), uint64_t(m), outputs), "cublasLtMatrixLayoutCreate");
      const uint64_t bytes = lt.workspace_.size();
      void* preference = nullptr;
      check(lt.create_preference_(&preference), "cublasLtMatmulPreferenceCreate");
      check(lt.set_preference_(preference, kMostWorkspace, &bytes, sizeof bytes), "cublasLtMatmulPreferenceSetAttribute");
      int found = 0;
      check(lt.heuristic_(lt.handle_, operation_, weights_, tokens_, out_, out_, preference, 1, &best_, &found),
            "cublasLtMatmulAlgoGetHeuristic");
      lt.destroy_preference_(preference);
      if (found == 0) throw Error(ErrorKind::kState, "cuBLASLt has no algorithm for a product");
    }
    ~Product() {
      lt_.destroy_operation_(operation_);
      for (void* layout : {weights_, tokens_, out_}) lt_.destroy_layout_(layout);
    }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;

    void run(cudaStream_t stream) {
      const float one = 1, zero = 0;
      check(lt_.matmul_(lt_.handle_, operation_, &one, w_, weights_, x_, tokens_, &zero, y_, out_, y_, out_, &best_.algorithm,
                        lt_.workspace_.data(), lt_.workspace_.size(), stream),
            "cublasLtMatmul");
    }

   private:
    CublasLt& lt_;
    const bf16 *x_, *w_;
    float* y_;
    void *operation_ = nullptr, *weights_ = nullptr, *tokens_ = nullptr, *out_ = nullptr;
    struct Found {
      struct Algorithm {
        uint64_t data[8];
      } algorithm;
      size_t workspace;
      int status;
      float waves;
      int reserved[4];
    } best_ = {};
    friend class CublasLt;
  };

 private:
  using Algorithm = Product::Found::Algorithm;

  CublasLt(void* library, const char* file) : library_(library), workspace_(size_t(64) << 20) {
    find(destroy_, "cublasLtDestroy");
    find(create_operation_, "cublasLtMatmulDescCreate");
    find(set_operation_, "cublasLtMatmulDescSetAttribute");
    find(destroy_operation_, "cublasLtMatmulDescDestroy");
    find(create_layout_, "cublasLtMatrixLayoutCreate");
    find(destroy_layout_, "cublasLtMatrixLayoutDestroy");
    find(create_preference_, "cublasLtMatmulPreferenceCreate");
    find(set_preference_, "cublasLtMatmulPreferenceSetAttribute");
    find(destroy_preference_, "cublasLtMatmulPreferenceDestroy");
    find(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
    find(matmul_, "cublasLtMatmul");
    size_t (*version)() = nullptr;
    int (*create)(void**) = nullptr;
    find(version, "cublasLtGetVersion");
    find(create, "cublasLtCreate");
    check(create(&handle_), "cublasLtCreate");
    name_ = std::string(file) + ", version " + std::to_string(version());
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (!function) throw Error(ErrorKind::kState, std::string("cuBLASLt has no ") + name);
  }
  static void check(int status, const char* what) {
    if (status != 0) throw Error(ErrorKind::kState, std::string(what) + ": status " + std::to_string(status));
  }

  void* library_;  // stays open
  void* handle_ = nullptr;
  std::string name_;
  cuda::DeviceBuffer<unsigned char> workspace_;
  int (*destroy_)(void*) = nullptr;
  int (*create_operation_)(void**, int compute, int scale) = nullptr;
  int (*set_operation_)(void*, int, const void*, size_t) = nullptr;
  int (*destroy_operation_)(void*) = nullptr;
  int (*create_layout_)(void**, int type, uint64_t rows, uint64_t columns, int64_t ld) = nullptr;
  int (*destroy_layout_)(void*) = nullptr;
  int (*create_preference_)(void**) = nullptr;
  int (*set_preference_)(void*, int, const void*, size_t) = nullptr;
  int (*destroy_preference_)(void*) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, Product::Found*, int*) = nullptr;
  int (*matmul_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
                 const Algorithm*, void*, size_t, cudaStream_t) = nullptr;
};

}  // namespace tandem::benchmarks
