/* The C ABI between the worker and a plug-in: a device whose libraries may be absent.
 *
 * A plug-in is one shared object that exports capstan_plugin() and nothing else. No C++ type and no
 * vendor type crosses: numbers, pointers and text alone. What a plan computes is the contract of
 * gpu_worker/engine/device/device.h; this header says only how it is asked for.
 *
 * Errors: every function returns a code, the numbers of google.rpc.Code (0 OK, 3 INVALID_ARGUMENT,
 * 4 DEADLINE_EXCEEDED, 5 NOT_FOUND, 8 RESOURCE_EXHAUSTED, 9 FAILED_PRECONDITION, 10 ABORTED,
 * 12 UNIMPLEMENTED, 13 INTERNAL, 14 UNAVAILABLE), and writes a sentence into `error` where the code
 * is not 0. Nothing is thrown and no call ends the process. Any function may answer ABORTED: the
 * host has no memory left, pinned memory included; RESOURCE_EXHAUSTED is the device's memory alone.
 * Ownership: text in a returned struct lives as long as what it describes: the plug-in, or the plan.
 * All pointers of a request are borrowed for the call.
 * Threads: the table and different plans may be used by many threads, one plan by one at a time.
 * Versions: CAPSTAN_PLUGIN_ABI rises with every change of this file; worker and plug-in are of one
 * build, so no older number is ever accepted. The place of `abi` in the table never changes.
 */
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_PLUGIN_ABI 8
#define CAPSTAN_PLUGIN_FACTORY "capstan_plugin"

typedef struct capstan_error {
  char text[1024]; /* ends with 0 */
} capstan_error;

/* What probe finds. Driver and runtime as CUDA counts them: 13000 is 13.0; 0: none. */
typedef struct capstan_probe {
  int32_t device_count;
  int32_t driver_version;
  int32_t needed_driver_version; /* the oldest that will do */
  const char* libraries;         /* "CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.1.0" */
} capstan_probe;

typedef struct capstan_device_info {
  const char* name;     /* "NVIDIA H200, compute capability 9.0" */
  int64_t memory_bytes; /* of the whole card */
  const char* uuid;     /* "GPU-1f2e...", as NVML prints it, the same in every process; "": none */
} capstan_device_info;

enum capstan_op_kind {
  CAPSTAN_OP_CONV = 1,
  CAPSTAN_OP_MAX_POOL = 2,
  CAPSTAN_OP_AVERAGE_POOL = 3,
  CAPSTAN_OP_GEMM = 4,
  CAPSTAN_OP_RELU = 5,
  CAPSTAN_OP_FLATTEN = 6,
  CAPSTAN_OP_SOFTMAX_CROSS_ENTROPY_LOSS = 7
};

/* A node of training::Graph. Nodes form a chain: node i reads the output of node i - 1, node 0 the
 * images. Backward runs in the reverse order. */
typedef struct capstan_op {
  int32_t kind;
  int32_t input_gradient; /* 1: some parameter acts on the input, so backward goes on there */
  const char* name;
  int64_t x[3]; /* channels, height, width; features 1 1 */
  int64_t y[3];
  /* Conv and pools: height, width; pads: top, left, bottom, right. */
  int64_t kernel[2], strides[2], pads[4], dilations[2];
  int64_t group;
  int64_t weight_offset; /* floats from the start of the flat vector; -1: none */
  int64_t bias_offset;
} capstan_op;

/* The numbers of multiplications. Weights, gradients, loss and sums are float32 in all of them. */
enum capstan_precision {
  CAPSTAN_PRECISION_FP32 = 0,
  CAPSTAN_PRECISION_TF32 = 1, /* factors rounded to 10 bits of fraction */
  CAPSTAN_PRECISION_BF16 = 2, /* activations and copies of the weights in bfloat16 */
  CAPSTAN_PRECISION_FP16 = 3
};

typedef struct capstan_compile_request {
  int32_t device;
  int32_t precision;
  int32_t deterministic; /* 1: equal bits from run to run, kernels by fixed rules */
  int32_t op_count;
  const capstan_op* ops; /* in forward order, the loss last */
  int64_t total_floats;  /* of the flat vector */
  int64_t max_batch;
} capstan_compile_request;

typedef struct capstan_plan_info {
  int64_t arena_bytes;
  int64_t weight_bytes;
  int64_t gradient_bytes;
  int64_t block_samples;
  const char* kernels; /* lines, ended by \n: "conv1 forward: cuDNN engine 7" */
} capstan_plan_info;

enum capstan_image_type {
  CAPSTAN_IMAGE_FLOAT32 = 0,
  CAPSTAN_IMAGE_UINT8 = 1,
  CAPSTAN_IMAGE_KEPT = 2 /* images: int32 [count], places of keep_images */
};

typedef struct capstan_batch {
  const void* images;    /* [count, C, H, W] */
  const int32_t* labels; /* [count] of [0, classes); null for predict */
  int64_t count;         /* 1 to max_batch */
  int32_t image_type;
  float image_scale; /* uint8 alone: value = byte * image_scale + image_shift */
  float image_shift;
  /* What random numbers are counted by. */
  const int64_t* ids; /* [count], places in the data set; null: nothing is drawn */
  uint64_t seed;
  uint32_t epoch;
} capstan_batch;

typedef struct capstan_result {
  double loss_sum;
  int64_t correct;
} capstan_result;

typedef struct capstan_plan capstan_plan; /* the plug-in's own */

/* Several plans of one model that compute a step together: engine/device/group.h. */
typedef struct capstan_group capstan_group; /* the plug-in's own */

typedef struct capstan_group_request {
  capstan_plan* const* plans; /* compiled alike; alive until the group is freed */
  const int32_t* devices;     /* what each was compiled for; the same one twice is two devices */
  int32_t plan_count;
  int32_t deterministic;      /* 1: peer copies alone, additions in the order of the step's ops */
  const int64_t* bucket_ends; /* floats, rising; the last is total_floats */
  int32_t bucket_count;
  double timeout_seconds; /* a wait without any progress ends after it */
  int32_t slot_count;     /* of a step; one with more takes memory then */
  int32_t momentum;       /* 1: there will be one */
} capstan_group_request;

typedef struct capstan_group_info {
  int32_t reduces;             /* 1: takes the REDUCE operations */
  const char* summary;         /* "2 GPUs, sums by NCCL 2.28.9"; as long as the group */
  const int64_t* device_bytes; /* [plan_count], beside the plans' own; as long as the group */
} capstan_group_info;

/* Of one slice, on the device that owns it: engine/collective/collective.h. */
enum capstan_fold_kind {
  CAPSTAN_FOLD_TAKE = 0,
  CAPSTAN_FOLD_ADD_LANE = 1,
  CAPSTAN_FOLD_ADD_SLOT = 2,
  CAPSTAN_FOLD_REDUCE = 3,
  CAPSTAN_FOLD_REDUCE_ADD = 4,
  CAPSTAN_FOLD_EMIT = 5
};
typedef struct capstan_fold_op {
  int32_t kind, round, slot, device, from, node;
} capstan_fold_op;

typedef struct capstan_group_step {
  const capstan_batch* lanes; /* [round_count][plan_count]; count 0: none */
  int32_t round_count;
  int32_t op_count;
  const capstan_fold_op* ops; /* rounds rising, an EMIT last */
  int32_t slot_count;
  int32_t node_count;
  double loss_scale;
  float* const* nodes;     /* [node_count]: total_floats each, host memory, written; null: the sum
                            * of the one node stays on the devices, for group_update */
  int32_t* finite;         /* written where nodes is null: 1: no infinity and no NaN in the sum */
  capstan_result* results; /* [round_count][plan_count], written */
  /* Bucket `bucket` of nodes[node] is written; buckets of a node in rising order. From the calling
   * thread. May be null. */
  void (*ready)(void* context, int32_t node, int32_t bucket);
  void* context;
} capstan_group_step;

/* Stochastic gradient descent: training/optim/sgd.h, the same bits. */
typedef struct capstan_sgd {
  double learning_rate;
  double gradient_scale; /* factor on the sum */
  double momentum;       /* 0: none is read */
  double weight_decay;
  int32_t nesterov;
} capstan_sgd;

typedef struct capstan_plugin_table {
  int32_t abi; /* CAPSTAN_PLUGIN_ABI of the plug-in; first for ever */
  int32_t size_bytes;

  /* Says what is there. UNAVAILABLE: nothing can be computed; `probe` has the versions and `error`
   * the reason, unless the versions say it. */
  int32_t (*probe)(capstan_probe* probe, capstan_error* error);
  /* Takes no hold of the device: no context, no memory. NOT_FOUND: no such device. */
  int32_t (*device_info)(int32_t device, capstan_device_info* info, capstan_error* error);

  /* RESOURCE_EXHAUSTED: the memory is not there; the text has planned, free and whole bytes and a
   * batch that would fit. UNIMPLEMENTED: an operator, attribute or precision, by name. */
  int32_t (*compile)(const capstan_compile_request* request, capstan_plan** plan,
                     capstan_error* error);
  void (*plan_info)(const capstan_plan* plan, capstan_plan_info* info);
  void (*free_plan)(capstan_plan* plan); /* null is allowed */

  int32_t (*load_weights)(capstan_plan* plan, const float* weights, capstan_error* error);
  /* Labels and counts have been checked by the caller, and weights are loaded. INTERNAL: the device
   * failed (a CUDA fault): call, code and device in the text; the plan is of no further use. */
  int32_t (*compute_lane)(capstan_plan* plan, const capstan_batch* batch, double loss_scale,
                          float* gradient, capstan_result* result, capstan_error* error);
  int32_t (*evaluate)(capstan_plan* plan, const capstan_batch* batch, capstan_result* result,
                      capstan_error* error);
  int32_t (*predict)(capstan_plan* plan, const capstan_batch* batch, float* logits,
                     capstan_error* error);

  /* INVALID_ARGUMENT: a plan of another device than the request says, or plans that differ.
   * UNAVAILABLE: the library that sums between GPUs is missing. RESOURCE_EXHAUSTED: the memory for
   * slots and momentum is not there. No plan of a group is used by two
   * threads at once, be it by itself or through the group. */
  int32_t (*make_group)(const capstan_group_request* request, capstan_group** group,
                        capstan_error* error);
  void (*group_info)(const capstan_group* group, capstan_group_info* info);
  void (*free_group)(capstan_group* group); /* null is allowed; before its plans */
  /* The same for all plans; the vector crosses from the host once. `momentum`, total_floats long too,
   * may be null: group_update may then use none. */
  int32_t (*group_load_weights)(capstan_group* group, const float* weights, const float* momentum,
                                capstan_error* error);
  /* DEADLINE_EXCEEDED: a device or the sum between devices made no progress for timeout_seconds; the
   * text names GPU and bucket. Group and plans are of no further use, and what they hold is given
   * up. INTERNAL: as compute_lane. */
  int32_t (*group_compute)(capstan_group* group, const capstan_group_step* step,
                           capstan_error* error);
  /* The weights and the momentum on the devices after a step with the sum that stayed there, which
   * is used up. Returns before it is done; what follows waits for it.
   * FAILED_PRECONDITION: no sum, or no momentum, is there; nothing has changed. */
  int32_t (*group_update)(capstan_group* group, const capstan_sgd* sgd, capstan_error* error);
  /* `momentum` may be null. FAILED_PRECONDITION: none was loaded. */
  int32_t (*group_read_weights)(capstan_group* group, float* weights, float* momentum,
                                capstan_error* error);

  /* Keeps images [first, first + count) of `whole`, float32, on the device; in rising order from 0.
   * RESOURCE_EXHAUSTED: they do not fit; nothing is kept and the plan is well. */
  int32_t (*keep_images)(capstan_plan* plan, const float* images, int64_t first, int64_t count,
                         int64_t whole, capstan_error* error);
} capstan_plugin_table;

/* The one exported function: the plug-in's table, alive as long as the plug-in is loaded. */
typedef const capstan_plugin_table* (*capstan_plugin_factory)(void);

#ifdef __cplusplus
}
#endif

#endif /* CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_ */
