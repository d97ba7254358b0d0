// The makers of all operators' kernels, for all.cc.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_TABLE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_TABLE_H_

#include <memory>

#include "gpu_worker/engine/cuda/ops/op_kernel.h"

namespace capstan::engine::cuda {

std::unique_ptr<OpKernel> MakeArithmetic(const OpSite& site);
std::unique_ptr<OpKernel> MakeBatchNorm(const OpSite& site);
std::unique_ptr<OpKernel> MakeConcat(const OpSite& site);
std::unique_ptr<OpKernel> MakeConstant(const OpSite& site);
std::unique_ptr<OpKernel> MakeDropout(const OpSite& site);
std::unique_ptr<OpKernel> MakeElements(const OpSite& site);
std::unique_ptr<OpKernel> MakeGather(const OpSite& site);
std::unique_ptr<OpKernel> MakeLayerNorm(const OpSite& site);
std::unique_ptr<OpKernel> MakeLrn(const OpSite& site);
std::unique_ptr<OpKernel> MakeMatMul(const OpSite& site);
std::unique_ptr<OpKernel> MakePad(const OpSite& site);
std::unique_ptr<OpKernel> MakeParameter(const OpSite& site);
std::unique_ptr<OpKernel> MakeReduce(const OpSite& site);
std::unique_ptr<OpKernel> MakeSlice(const OpSite& site);
std::unique_ptr<OpKernel> MakeSoftmax(const OpSite& site);
std::unique_ptr<OpKernel> MakeSumOfInputs(const OpSite& site);
std::unique_ptr<OpKernel> MakeTranspose(const OpSite& site);
std::unique_ptr<OpKernel> MakeTrilu(const OpSite& site);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_TABLE_H_
