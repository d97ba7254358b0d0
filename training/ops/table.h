// The table of operators: one line each, sorted by name. AllOps(), the cases of all operators and
// the CPU's kernels are made from it.
#ifndef CAPSTAN_TRAINING_OPS_TABLE_H_
#define CAPSTAN_TRAINING_OPS_TABLE_H_

// X(operator, kernel): the operator has <operator>Op() and <operator>Cases() in its folder.
// `kernel` names its kernel on a CPU, Make<kernel>Phases() in a file of gpu_worker/engine/cpu/ops/.
// Several operators may share one. View: there is nothing to compute. Reference: the operator has
// no kernel and runs its reference.
#define CAPSTAN_OPERATORS(X)             \
  X(Add, Sum)                            \
  X(AveragePool, Pool)                   \
  X(BatchNormalization, Norm)            \
  X(Cast, Reference)                     \
  X(Clip, Reference)                     \
  X(Concat, Concat)                      \
  X(ConstantOfShape, Reference)          \
  X(Conv, Conv)                          \
  X(Div, Reference)                      \
  X(Dropout, Dropout)                    \
  X(Flatten, View)                       \
  X(Gather, Reference)                   \
  X(Gelu, Gelu)                          \
  X(Gemm, Gemm)                          \
  X(GlobalAveragePool, GlobalPool)       \
  X(GlobalMaxPool, Reference)            \
  X(Identity, View)                      \
  X(LRN, Reference)                      \
  X(LayerNormalization, Reference)       \
  X(LeakyRelu, Reference)                \
  X(Linear, Linear)                      \
  X(LogSoftmax, Reference)               \
  X(MatMul, Reference)                   \
  X(MaxPool, Pool)                       \
  X(Mul, Reference)                      \
  X(Pad, Reference)                      \
  X(Parameter, Reference)                \
  X(ReduceMean, Reference)               \
  X(ReduceSum, Reference)                \
  X(Relu, Relu)                          \
  X(Reshape, View)                       \
  X(SequenceCrossEntropyLoss, Reference) \
  X(Sigmoid, Reference)                  \
  X(Slice, Reference)                    \
  X(Softmax, Reference)                  \
  X(SoftmaxCrossEntropyLoss, Reference)  \
  X(Squeeze, View)                       \
  X(Sub, Reference)                      \
  X(Sum, Sum)                            \
  X(Tanh, Reference)                     \
  X(Transpose, Reference)                \
  X(Trilu, Reference)                    \
  X(Unsqueeze, View)

#endif  // CAPSTAN_TRAINING_OPS_TABLE_H_
