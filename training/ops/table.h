// The table of operators: one line each, sorted by name. AllOps(), the cases of all operators and
// the CPU's kernels are made from it.
#ifndef CAPSTAN_TRAINING_OPS_TABLE_H_
#define CAPSTAN_TRAINING_OPS_TABLE_H_

// X(operator, kernel): the operator has <operator>Op() and <operator>Cases() in its folder.
// `kernel` names its kernel on a CPU, Make<kernel>Phases() in a file of gpu_worker/engine/cpu/ops/.
// Several operators may share one. View: there is nothing to compute. Reference: the operator has
// no kernel and runs its reference.
#define CAPSTAN_OPERATORS(X)                \
  X(Add, Arithmetic)                        \
  X(AveragePool, Pool)                      \
  X(BatchNormalization, Norm)               \
  X(Cast, Cast)                             \
  X(Clip, Activation)                       \
  X(Concat, Concat)                         \
  X(ConstantOfShape, ConstantOfShape)       \
  X(Conv, Conv)                             \
  X(Div, Arithmetic)                        \
  X(Dropout, Dropout)                       \
  X(Flatten, View)                          \
  X(Gather, Gather)                         \
  X(Gelu, Gelu)                             \
  X(Gemm, Gemm)                             \
  X(GlobalAveragePool, GlobalPool)          \
  X(GlobalMaxPool, GlobalMax)               \
  X(Identity, View)                         \
  X(LRN, Lrn)                               \
  X(LayerNormalization, LayerNormalization) \
  X(LeakyRelu, Activation)                  \
  X(Linear, Linear)                         \
  X(LogSoftmax, Softmax)                    \
  X(MatMul, MatMul)                         \
  X(MaxPool, Pool)                          \
  X(MeanSquaredErrorLoss, Reference)        \
  X(Mul, Arithmetic)                        \
  X(Pad, Pad)                               \
  X(Parameter, Parameter)                   \
  X(ReduceMean, Reduce)                     \
  X(ReduceSum, Reduce)                      \
  X(Relu, Relu)                             \
  X(Reshape, View)                          \
  X(SequenceCrossEntropyLoss, Reference)    \
  X(Sigmoid, Activation)                    \
  X(Slice, Slice)                           \
  X(Softmax, Softmax)                       \
  X(SoftmaxCrossEntropyLoss, Reference)     \
  X(Squeeze, View)                          \
  X(Sub, Arithmetic)                        \
  X(Sum, Sum)                               \
  X(Tanh, Activation)                       \
  X(Transpose, Transpose)                   \
  X(Trilu, Trilu)                           \
  X(Unsqueeze, View)

#endif  // CAPSTAN_TRAINING_OPS_TABLE_H_
