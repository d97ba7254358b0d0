// The table of operators that a card has as kOperator stages.
#include <map>
#include <string>

#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"

namespace capstan::engine::cuda {
namespace {

using MakeOperator = std::unique_ptr<OpKernel> (*)(const OpSite& site);

const std::map<std::string, MakeOperator>& Makers() {
  static const auto& makers = *new std::map<std::string, MakeOperator>{
      {"Add", MakeArithmetic},
      {"BatchNormalization", MakeBatchNorm},
      {"Cast", MakeElements},
      {"Clip", MakeElements},
      {"Concat", MakeConcat},
      {"ConstantOfShape", MakeConstant},
      {"Div", MakeArithmetic},
      {"Dropout", MakeDropout},
      {"Gather", MakeGather},
      {"Gelu", MakeElements},
      {"LRN", MakeLrn},
      {"LayerNormalization", MakeLayerNorm},
      {"LeakyRelu", MakeElements},
      {"LogSoftmax", MakeSoftmax},
      {"MatMul", MakeMatMul},
      {"Mul", MakeArithmetic},
      {"Pad", MakePad},
      {"Parameter", MakeParameter},
      {"ReduceMean", MakeReduce},
      {"ReduceSum", MakeReduce},
      {"Relu", MakeElements},
      {"Sigmoid", MakeElements},
      {"Slice", MakeSlice},
      {"Softmax", MakeSoftmax},
      {"Sub", MakeArithmetic},
      {"Sum", MakeSumOfInputs},
      {"Tanh", MakeElements},
      {"Transpose", MakeTranspose},
      {"Trilu", MakeTrilu},
  };
  return makers;
}

}  // namespace

std::unique_ptr<OpKernel> MakeOpKernel(const OpSite& site) {
  return Makers().at(site.graph.nodes()[site.stage.node].op.name)(site);
}

}  // namespace capstan::engine::cuda
