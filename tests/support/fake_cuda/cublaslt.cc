// cuBLASLt of the stand-in: the calls of lt_matmul.cc, on one thread of the CPU.
//
// D = epilogue(alpha op(A) op(B) + beta C), in column-major order. Sums are float32, over k from 0.
// TF32 first rounds the factors to 10 bits of mantissa. The types are those in cuBLASLt's table for
// compute type 32F: A, B and D alike, or D float32. 32F_FAST_TF32 has only float32. alpha and beta
// are float32.
//
// It refuses more than a card does: whatever the plug-in does not use, an algorithm for another
// product, overlaps with D and the workspace, and a current device other than the handle's.
//
// CAPSTAN_FAKE_CUDA:
//   lt=none          the heuristic knows no algorithm
//   lt_relu=drops    the Relu of an epilogue makes 0 of a NaN, as kernels of max(x, 0) do
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/engine/cuda/half16.h"
#include "services/sync/mutex.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::lt {
namespace {

using engine::cuda::Bf16;
using engine::cuda::BitsOf;
using engine::cuda::FloatOf;
using engine::cuda::Fp16;

constexpr uint64_t kAlgorithmMark = 0x6361707374616e21;
// Workspace that the heuristic's first algorithm asks for and overwrites.
constexpr size_t kAlgorithmBytes = 1024;
// Kernels of Hopper require it of the workspace: TransformerEngine pull request 2223, mlx 2466.
constexpr size_t kWorkspaceAlignment = 256;
// No preference states the alignment of the bias. The heuristic uses the pointer that it sees; if
// that is null, kernels read 16 bytes at once: PyTorch pull request 194497.
constexpr size_t kBiasAlignment = 16;

struct Handle {
  int device = 0;
};
struct Layout {
  cudaDataType type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, ld = 0;
  int32_t batch = 1;   // matrices
  int64_t offset = 0;  // elements from one to the next

  bool operator==(const Layout&) const = default;
};
struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};  // of A, B, C, D
};

// The content of cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t mark;
  uint64_t product;  // Fingerprint()
  uint64_t workspace_bytes;
  int32_t device;
  uint32_t bias_alignment;
  std::array<uint32_t, 4> alignments;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

// The objects behind the handles, so that a destroyed one is refused and not read.
template <typename T>
class Objects {
 public:
  template <typename Pointer>
  void Add(T object, Pointer* handle) ABSL_LOCKS_EXCLUDED(mu_) {
    auto owned = std::make_unique<T>(object);
    *handle = reinterpret_cast<Pointer>(owned.get());
    MutexLock lock(mu_);
    objects_.emplace(owned.get(), std::move(owned));
  }
  // Null: there is none.
  T* Find(const void* handle) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second.get();
  }
  bool Remove(const void* handle) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return objects_.erase(handle) > 0;
  }

 private:
  Mutex mu_;
  std::map<const void*, std::unique_ptr<T>> objects_ ABSL_GUARDED_BY(mu_);
};
template <typename T>
Objects<T>& All() {
  static auto& objects = *new Objects<T>;  // calls may come while the process ends
  return objects;
}

cublasStatus_t Refuse(cublasStatus_t status, const std::string& why) {
  Complain("cuBLASLt: " + why);
  return status;
}
cublasStatus_t Invalid(const std::string& why) { return Refuse(CUBLAS_STATUS_INVALID_VALUE, why); }
cublasStatus_t NotSupported(const std::string& why) {
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
}

struct StatusText {
  cublasStatus_t status;
  const char *name, *text;
};
constexpr StatusText kStatusTexts[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "no such handle"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "a parameter is wrong"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the device failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "not supported"},
};
const StatusText& TextOf(cublasStatus_t status) {
  static constexpr StatusText kOther = {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_UNKNOWN", "unknown"};
  for (const StatusText& text : kStatusTexts) {
    if (text.status == status) return text;
  }
  return kOther;  // no call here returns it
}

template <typename T>
cublasStatus_t Destroy(const void* handle, const std::string& what) {
  return All<T>().Remove(handle) ? CUBLAS_STATUS_SUCCESS : Invalid("destroys no live " + what);
}

// Sets an attribute. `bytes` must be the size of its type.
template <typename T>
cublasStatus_t Store(const void* value, size_t bytes, const char* name, T* place) {
  if (value == nullptr || bytes != sizeof *place) {
    return Invalid(std::string(name) + ": " + std::to_string(bytes) + " bytes, want " +
                   std::to_string(sizeof *place));
  }
  std::memcpy(place, value, sizeof *place);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t BytesOf(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }
bool HasBias(uint32_t epilogue) { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
size_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? kBiasAlignment : std::min<size_t>(address & (~address + 1), 256);
}
std::string Shape(const Layout& layout) {
  return std::to_string(layout.rows) + " x " + std::to_string(layout.columns) + " (ld " +
         std::to_string(layout.ld) + ")";
}
// Bytes from the first element to the end of the last.
int64_t Span(const Layout& layout) {
  return ((layout.batch - 1) * layout.offset + (layout.columns - 1) * layout.ld + layout.rows) *
         BytesOf(layout.type);
}

// Everything that the arithmetic needs. Copied, because the descriptors may be gone when it runs.
struct Product {
  Description description;
  Layout a, b, c, d;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  bool drops_nan = false;
  const void *a_data = nullptr, *b_data = nullptr, *c_data = nullptr;
  void* d_data = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Checks the sizes and types of the four matrices.
cublasStatus_t Fit(const Description* description, const Layout* a, const Layout* b,
                   const Layout* c, const Layout* d, Product* product) {
  if (description == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return Invalid("a descriptor is null or destroyed");
  }
  const bool at = description->transpose_a != CUBLAS_OP_N;
  const bool bt = description->transpose_b != CUBLAS_OP_N;
  *product = {.description = *description, .a = *a, .b = *b, .c = *c, .d = *d};
  product->m = at ? a->columns : a->rows;
  product->k = at ? a->rows : a->columns;
  product->n = bt ? b->rows : b->columns;
  const int64_t k = bt ? b->columns : b->rows;
  if (product->k != k) {
    return Invalid("op(A) has " + std::to_string(product->k) + " columns, op(B) " +
                   std::to_string(k) + " rows; A is " + Shape(*a) + ", B " + Shape(*b));
  }
  if (d->rows != product->m || d->columns != product->n) {
    return Invalid("D is " + Shape(*d) + ", want " + std::to_string(product->m) + " x " +
                   std::to_string(product->n));
  }
  if (c->type != d->type || c->rows != d->rows || c->columns != d->columns) {
    return Invalid("C and D differ in type, rows or columns");
  }
  const auto all = {a, b, c, d};
  if (std::any_of(all.begin(), all.end(), [](const Layout* l) {
        return l->rows > INT32_MAX || l->columns > INT32_MAX || l->ld > INT32_MAX;
      })) {
    return NotSupported("a matrix has more than 2^31 - 1 rows, columns or elements between them");
  }
  if (std::any_of(all.begin(), all.end(), [&](const Layout* l) { return l->batch != d->batch; })) {
    return Invalid("the operands have different numbers of matrices");
  }
  if (d->batch > 1 && d->offset < (d->columns - 1) * d->ld + d->rows) {
    return Invalid("the matrices of D overlap");
  }
  if (d->batch > 1 && description->epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    return NotSupported("an epilogue of many matrices");
  }
  if (a->type != b->type) return NotSupported("A and B have different types");
  if (description->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F) {
    return NotSupported("32F_FAST_TF32 multiplies float32 alone");
  }
  if (d->type != a->type && d->type != CUDA_R_32F) {
    return NotSupported("D is neither of A's type nor float32");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// A hash of everything that the choice of an algorithm depends on (FNV-1a).
uint64_t Fingerprint(const Product& product) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  };
  const Description& description = product.description;
  for (const int64_t value :
       {static_cast<int64_t>(description.compute), int64_t{description.transpose_a},
        int64_t{description.transpose_b}, int64_t{description.epilogue}}) {
    add(value);
  }
  for (const Layout& layout : {product.a, product.b, product.c, product.d}) {
    for (const int64_t value : {static_cast<int64_t>(layout.type), layout.rows, layout.columns,
                                layout.ld, int64_t{layout.batch}, layout.offset}) {
      add(value);
    }
  }
  return hash;
}

// --- What calls hand over ------------------------------------------------------------------------

bool Overlap(const void* left, size_t left_bytes, const void* right, size_t right_bytes) {
  const auto l = reinterpret_cast<uintptr_t>(left), r = reinterpret_cast<uintptr_t>(right);
  return left_bytes > 0 && right_bytes > 0 && l < r + right_bytes && r < l + left_bytes;
}

struct Operand {
  const char* name;
  const void* data;
  size_t bytes;
  size_t alignment;
  size_t step = 0;  // bytes from one matrix to the next
};

cublasStatus_t CheckMemory(const Product& product, const Algorithm& algorithm, int device) {
  const Description& description = product.description;
  const auto span = [](const Layout& layout) { return static_cast<size_t>(Span(layout)); };
  const auto step = [](const Layout& layout) {
    return static_cast<size_t>(layout.offset * BytesOf(layout.type));
  };
  std::vector<Operand> reads = {
      {"A", product.a_data, span(product.a), algorithm.alignments[0], step(product.a)},
      {"B", product.b_data, span(product.b), algorithm.alignments[1], step(product.b)},
  };
  // With a beta of 0, C is not read and may be anything.
  if (product.beta != 0) {
    reads.push_back({"C", product.c_data, span(product.c), algorithm.alignments[2]});
  }
  if (HasBias(description.epilogue)) {
    const auto bytes = static_cast<size_t>(product.m * BytesOf(product.d.type));
    reads.push_back({"the bias", description.bias, bytes, algorithm.bias_alignment});
  }
  std::vector<Operand> all = reads;
  const Operand result = {"D", product.d_data, span(product.d), algorithm.alignments[3],
                          step(product.d)};
  const Operand scratch = {"the workspace", product.workspace, product.workspace_bytes,
                           kWorkspaceAlignment};
  all.push_back(result);
  if (scratch.bytes > 0) all.push_back(scratch);
  for (const Operand& operand : all) {
    const std::string name = operand.name;
    if (operand.data == nullptr) return Invalid(name + " is null");
    if (AlignmentOf(operand.data) < operand.alignment || operand.step % operand.alignment != 0) {
      return Invalid(name + " does not begin at a multiple of " +
                     std::to_string(operand.alignment) + " bytes, as the algorithm was promised");
    }
    if (!Reaches(device, operand.data, operand.bytes, "cublasLtMatmul: " + name)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (product.c_data == product.d_data && product.c != product.d) {
    return Invalid("C lies in D's place with another layout");
  }
  for (const Operand& read : reads) {
    const bool in_place = read.data == result.data && std::string(read.name) == "C";
    if (!in_place && Overlap(read.data, read.bytes, result.data, result.bytes)) {
      return Invalid(std::string("D overlaps ") + read.name);
    }
  }
  for (const Operand& operand : all) {
    if (operand.data != scratch.data &&
        Overlap(operand.data, operand.bytes, scratch.data, scratch.bytes)) {
      return Invalid(std::string("the workspace overlaps ") + operand.name);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Reads one float in host memory.
cublasStatus_t ReadScale(const void* scale, const char* name, float* value) {
  if (scale == nullptr) return Invalid(std::string(name) + " is null");
  if (Find(scale).place == Place::kDevice) {
    return Invalid(std::string(name) + " is device memory; the pointer mode is the host's");
  }
  std::memcpy(value, scale, sizeof *value);
  return CUBLAS_STATUS_SUCCESS;
}

// --- The arithmetic ------------------------------------------------------------------------------

// Rows are summed side by side, in vector instructions with any compiler options.
using Floats = float __attribute__((vector_size(4 * sizeof(float))));
constexpr int64_t kRows = 16;
struct Panel {
  Floats quarters[4];

  float& operator[](int64_t row) { return reinterpret_cast<float*>(quarters)[row]; }
};

template <typename T>
float Load(const void* data, int64_t index) {
  return static_cast<float>(static_cast<const T*>(data)[index]);
}
float LoadAs(cudaDataType type, const void* data, int64_t index) {
  return type == CUDA_R_32F    ? Load<float>(data, index)
         : type == CUDA_R_16BF ? Load<Bf16>(data, index)
                               : Load<Fp16>(data, index);
}
void StoreAs(cudaDataType type, float value, void* data, int64_t index) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[index] = value;
  } else if (type == CUDA_R_16BF) {
    static_cast<Bf16*>(data)[index] = Bf16(value);
  } else {
    static_cast<Fp16*>(data)[index] = Fp16(value);
  }
}

// Rounds to nearest, ties away from zero, as cvt.rna.tf32.f32 does. Infinities and NaNs stay.
float RoundToTf32(float v) {
  const uint32_t bits = BitsOf(v);
  if ((bits & 0x7f800000u) == 0x7f800000u) return v;
  return FloatOf((bits + 0x1000u) & ~0x1fffu);
}

class Factor {
 public:
  Factor(const Product& product, const Layout& layout, int32_t transpose, const void* data)
      : type_(layout.type),
        row_(transpose == CUBLAS_OP_N ? 1 : layout.ld),
        column_(transpose == CUBLAS_OP_N ? layout.ld : 1),
        rounds_(product.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32),
        data_(data) {}
  // An element of op(matrix).
  float at(int64_t row, int64_t column) const {
    const float v = LoadAs(type_, data_, row * row_ + column * column_);
    return rounds_ ? RoundToTf32(v) : v;
  }

 private:
  const cudaDataType type_;
  const int64_t row_, column_;
  const bool rounds_;
  const void* const data_;
};

float Finish(const Product& product, int64_t row, int64_t column, float sum) {
  const Description& description = product.description;
  float v = product.alpha * sum;
  if (product.beta != 0) {
    v += product.beta * LoadAs(product.c.type, product.c_data, row + column * product.c.ld);
  }
  if (HasBias(description.epilogue)) v += LoadAs(product.d.type, description.bias, row);
  if ((description.epilogue & CUBLASLT_EPILOGUE_RELU) == 0) return v;
  if (product.drops_nan) return v > 0 ? v : 0;
  return v < 0 ? 0 : v;
}

void MultiplyOne(const Product& product) {
  const Factor a(product, product.a, product.description.transpose_a, product.a_data);
  const Factor b(product, product.b, product.description.transpose_b, product.b_data);
  const int64_t k = product.k;
  std::vector<float> right(static_cast<size_t>(k * product.n));
  for (int64_t j = 0; j < product.n; ++j) {
    for (int64_t p = 0; p < k; ++p) right[static_cast<size_t>(j * k + p)] = b.at(p, j);
  }
  std::vector<Panel> left(static_cast<size_t>(k));
  for (int64_t top = 0; top < product.m; top += kRows) {
    const int64_t rows = std::min(kRows, product.m - top);
    for (int64_t p = 0; p < k; ++p) {
      Panel& panel = left[static_cast<size_t>(p)];
      for (int64_t i = 0; i < rows; ++i) panel[i] = a.at(top + i, p);
    }
    for (int64_t j = 0; j < product.n; ++j) {
      const float* factor = right.data() + j * k;
      Floats first = {}, second = {}, third = {}, fourth = {};
      for (const Panel& panel : left) {
        first += panel.quarters[0] * *factor;
        second += panel.quarters[1] * *factor;
        third += panel.quarters[2] * *factor;
        fourth += panel.quarters[3] * *factor++;
      }
      Panel sums = {{first, second, third, fourth}};
      for (int64_t i = 0; i < rows; ++i) {
        StoreAs(product.d.type, Finish(product, top + i, j, sums[i]), product.d_data,
                top + i + j * product.d.ld);
      }
    }
  }
}

void Multiply(const Product& all) {
  if (all.workspace_bytes > 0) std::memset(all.workspace, 0xa5, all.workspace_bytes);
  for (int64_t i = 0; i < all.d.batch; ++i) {
    const auto further = [i](const Layout& layout) {
      return i * layout.offset * BytesOf(layout.type);
    };
    Product one = all;
    one.a_data = static_cast<const char*>(all.a_data) + further(all.a);
    one.b_data = static_cast<const char*>(all.b_data) + further(all.b);
    one.c_data = static_cast<const char*>(all.c_data) + further(all.c);
    one.d_data = static_cast<char*>(all.d_data) + further(all.d);
    MultiplyOne(one);
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return Invalid("cublasLtCreate: null");
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    return Refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasLtCreate: no current device");
  }
  All<Handle>().Add({device}, handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (All<Handle>().Remove(handle)) return CUBLAS_STATUS_SUCCESS;
  return Refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasLtDestroy: no such handle");
}

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) { return TextOf(status).name; }
const char* cublasLtGetStatusString(cublasStatus_t status) { return TextOf(status).text; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (description == nullptr) return Invalid("cublasLtMatmulDescCreate: null");
  if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) {
    return NotSupported("the compute type is neither 32F nor 32F_FAST_TF32");
  }
  if (scale != CUDA_R_32F) return NotSupported("alpha and beta are float32 for 32F");
  All<Description>().Add({.compute = compute}, description);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return Destroy<Description>(description, "matmul descriptor");
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Description* const description = All<Description>().Find(handle);
  if (description == nullptr) return Invalid("cublasLtMatmulDescSetAttribute: no such descriptor");
  Description next = *description;
  const cublasStatus_t status =
      attribute == CUBLASLT_MATMUL_DESC_TRANSA   ? Store(value, bytes, "TRANSA", &next.transpose_a)
      : attribute == CUBLASLT_MATMUL_DESC_TRANSB ? Store(value, bytes, "TRANSB", &next.transpose_b)
      : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? Store(value, bytes, "EPILOGUE", &next.epilogue)
      : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER
          ? Store(value, bytes, "BIAS_POINTER", &next.bias)
          : NotSupported("attribute " + std::to_string(attribute) + " of a matmul descriptor");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (const int32_t transpose : {next.transpose_a, next.transpose_b}) {
    if (transpose != CUBLAS_OP_N && transpose != CUBLAS_OP_T) {
      return NotSupported("operation " + std::to_string(transpose) + " on a matrix");
    }
  }
  if (next.epilogue != CUBLASLT_EPILOGUE_DEFAULT && next.epilogue != CUBLASLT_EPILOGUE_RELU &&
      next.epilogue != CUBLASLT_EPILOGUE_BIAS && next.epilogue != CUBLASLT_EPILOGUE_RELU_BIAS) {
    return NotSupported("epilogue " + std::to_string(next.epilogue));
  }
  *description = next;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (layout == nullptr) return Invalid("cublasLtMatrixLayoutCreate: null");
  if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF) {
    return NotSupported("matrices of type " + std::to_string(type));
  }
  if (rows == 0 || columns == 0) return Invalid("a matrix without elements");
  if (rows > INT64_MAX || columns > INT64_MAX || ld < static_cast<int64_t>(rows)) {
    return Invalid("columns of " + std::to_string(rows) + " elements begin " + std::to_string(ld) +
                   " apart");
  }
  All<Layout>().Add({.type = type,
                     .rows = static_cast<int64_t>(rows),
                     .columns = static_cast<int64_t>(columns),
                     .ld = ld},
                    layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  Layout* const layout = All<Layout>().Find(handle);
  if (layout == nullptr) return Invalid("cublasLtMatrixLayoutSetAttribute: no such layout");
  Layout next = *layout;
  const cublasStatus_t status =
      attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
          ? Store(value, bytes, "BATCH_COUNT", &next.batch)
      : attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
          ? Store(value, bytes, "STRIDED_BATCH_OFFSET", &next.offset)
          : NotSupported("attribute " + std::to_string(attribute) + " of a matrix layout");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (next.batch < 1 || next.offset < 0) return Invalid("matrices that do not follow each other");
  *layout = next;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy<Layout>(layout, "matrix layout");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (preference == nullptr) return Invalid("cublasLtMatmulPreferenceCreate: null");
  All<Preference>().Add({}, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy<Preference>(preference, "preference");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference* const preference = All<Preference>().Find(handle);
  if (preference == nullptr) return Invalid("no such preference");
  Preference next = *preference;
  const auto operand = static_cast<size_t>(attribute) -
                       static_cast<size_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  const cublasStatus_t status =
      attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
          ? Store(value, bytes, "MAX_WORKSPACE_BYTES", &next.workspace_bytes)
      : attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
          ? Store(value, bytes, "REDUCTION_SCHEME_MASK", &next.schemes)
      : operand < next.alignments.size()
          ? Store(value, bytes, "MIN_ALIGNMENT", &next.alignments[operand])
          : NotSupported("attribute " + std::to_string(attribute) + " of a preference");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if ((next.schemes & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}) != 0) {
    return Invalid("reduction scheme mask " + std::to_string(next.schemes));
  }
  for (const uint32_t alignment : next.alignments) {
    if (alignment == 0 || alignment > 256 || (alignment & (alignment - 1)) != 0) {
      return Invalid("alignment " + std::to_string(alignment) + ", want a power of two to 256");
    }
  }
  *preference = next;
  return CUBLAS_STATUS_SUCCESS;
}

// Returns one algorithm at most. It does not split its sums, which every mask of reduction schemes
// allows.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (count != nullptr) *count = 0;
  const Handle* const context = All<Handle>().Find(handle);
  if (context == nullptr) return Refuse(CUBLAS_STATUS_NOT_INITIALIZED, "heuristic: no such handle");
  const Preference* const wish = All<Preference>().Find(preference);
  if (wish == nullptr || wanted <= 0 || results == nullptr || count == nullptr) {
    return Invalid("heuristic: no preference, or no place for results");
  }
  Product product;
  const cublasStatus_t status =
      Fit(All<Description>().Find(description), All<Layout>().Find(a), All<Layout>().Find(b),
          All<Layout>().Find(c), All<Layout>().Find(d), &product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (Setting("lt", "") == "none") return CUBLAS_STATUS_NOT_SUPPORTED;
  Algorithm algorithm = {};
  algorithm.mark = kAlgorithmMark;
  algorithm.product = Fingerprint(product);
  algorithm.workspace_bytes = wish->workspace_bytes < kAlgorithmBytes ? 0 : kAlgorithmBytes;
  algorithm.device = context->device;
  algorithm.bias_alignment = static_cast<uint32_t>(AlignmentOf(product.description.bias));
  algorithm.alignments = wish->alignments;
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Handle* const context = All<Handle>().Find(handle);
  if (context == nullptr) {
    return Refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasLtMatmul: no such handle");
  }
  Product product;
  cublasStatus_t status = Fit(All<Description>().Find(description), All<Layout>().Find(a_layout),
                              All<Layout>().Find(b_layout), All<Layout>().Find(c_layout),
                              All<Layout>().Find(d_layout), &product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  status = ReadScale(alpha, "alpha", &product.alpha);
  if (status == CUBLAS_STATUS_SUCCESS) status = ReadScale(beta, "beta", &product.beta);
  if (status != CUBLAS_STATUS_SUCCESS) return status;

  Algorithm algorithm = {};
  if (algo != nullptr) std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.mark != kAlgorithmMark) return Invalid("the algorithm is none of the heuristic's");
  if (algorithm.product != Fingerprint(product) || algorithm.device != context->device) {
    return Invalid("the algorithm was chosen for another product, or another device");
  }
  if (workspace_bytes < algorithm.workspace_bytes) {
    return Invalid("a workspace of " + std::to_string(workspace_bytes) + " bytes, want " +
                   std::to_string(algorithm.workspace_bytes));
  }
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (current != context->device || DeviceOf(stream) != context->device) {
    return Invalid("the handle is of device " + std::to_string(context->device) +
                   ", the current one is " + std::to_string(current) + ", the stream's is " +
                   std::to_string(DeviceOf(stream)));
  }
  product.a_data = a;
  product.b_data = b;
  product.c_data = c;
  product.d_data = d;
  product.workspace = workspace;
  product.workspace_bytes = algorithm.workspace_bytes;
  product.drops_nan = Setting("lt_relu", "keeps") == "drops";
  status = CheckMemory(product, algorithm, context->device);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cudaError_t error = Enqueue(stream, [product] { Multiply(product); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"

}  // namespace capstan::fake_cuda::lt
