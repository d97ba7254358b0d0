// The table of operators: one line each, sorted by name. AllOps(), the cases of all operators and
// the CPU's kernels are made from it.
#ifndef CAPSTAN_TRAINING_OPS_TABLE_H_
#define CAPSTAN_TRAINING_OPS_TABLE_H_

// X(operator, kernel): the operator has <operator>Op() and <operator>Cases() in its folder.
// `kernel` names its kernel on a CPU, Make<kernel>Phases() in a file of gpu_worker/engine/cpu/ops/.
// Several operators may share one. View: there is nothing to compute. Reference: the operator has
// no kernel and runs its reference.
#define CAPSTAN_OPERATORS(X)            \
  X(Add, Sum)                           \
  X(AveragePool, Pool)                  \
  X(BatchNormalization, Norm)           \
  X(Concat, Concat)                     \
  X(Conv, Conv)                         \
  X(Dropout, Dropout)                   \
  X(Flatten, View)                      \
  X(Gelu, Gelu)                         \
  X(Gemm, Gemm)                         \
  X(GlobalAveragePool, GlobalPool)      \
  X(MaxPool, Pool)                      \
  X(Relu, Relu)                         \
  X(Reshape, View)                      \
  X(SoftmaxCrossEntropyLoss, Reference) \
  X(Sum, Sum)

#endif  // CAPSTAN_TRAINING_OPS_TABLE_H_
