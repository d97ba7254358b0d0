/* The C ABI between the worker and a plug-in: a device whose libraries may be absent.
 *
 * A plug-in is one shared object that exports only capstan_plugin(). No C++ type and no vendor type
 * crosses the border, only numbers, pointers and text. gpu_worker/engine/device/device.h is the
 * contract of what a plan computes; this header only says how to call it.
 *
 * Errors: every function returns a code with a number of google.rpc.Code (0 OK, 3 INVALID_ARGUMENT,
 * 4 DEADLINE_EXCEEDED, 5 NOT_FOUND, 8 RESOURCE_EXHAUSTED, 9 FAILED_PRECONDITION, 10 ABORTED,
 * 12 UNIMPLEMENTED, 13 INTERNAL, 14 UNAVAILABLE), and writes a sentence into `error` if the code is
 * not 0. Nothing is thrown and no call ends the process. Any function may return ABORTED: the host
 * has no memory left, pinned memory included. RESOURCE_EXHAUSTED is only about the device's memory.
 * Ownership: text in a returned struct lives as long as the plug-in or plan that it describes. All
 * pointers of a request are borrowed for the call.
 * Threads: many threads may use the table and different plans. Only one at a time may use a plan.
 * Versions: CAPSTAN_PLUGIN_ABI rises with every change of the interface. Worker and plug-in are of
 * one build, so no older number is ever accepted. The place of `abi` in the table never changes.
 */
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_PLUGIN_ABI 11
#define CAPSTAN_PLUGIN_FACTORY "capstan_plugin"

typedef struct capstan_error {
  char text[1024]; /* ends with 0 */
} capstan_error;

/* The result of probe. Versions are numbered as in CUDA: 13000 is 13.0; 0 means none. */
typedef struct capstan_probe {
  int32_t device_count;
  int32_t driver_version;
  int32_t needed_driver_version; /* the oldest that works */
  const char* libraries;         /* "CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.1.0" */
} capstan_probe;

typedef struct capstan_device_info {
  const char* name;     /* "NVIDIA H200, compute capability 9.0" */
  int64_t memory_bytes; /* of the whole card */
  const char* uuid; /* "GPU-1f2e...", as NVML prints it, the same in every process; "" if none */
} capstan_device_info;

/* An attribute of an operator, by its ONNX name (training/ops/attributes.h). */
enum capstan_attribute_type {
  CAPSTAN_ATTRIBUTE_INT = 0,
  CAPSTAN_ATTRIBUTE_FLOAT = 1,
  CAPSTAN_ATTRIBUTE_TEXT = 2,
  CAPSTAN_ATTRIBUTE_INTS = 3
};
typedef struct capstan_attribute {
  const char* name;
  int32_t type;
  int32_t count;           /* INTS */
  int64_t integer;         /* INT */
  double number;           /* FLOAT */
  const char* text;        /* TEXT */
  const int64_t* integers; /* INTS: [count]; null if there are none */
} capstan_attribute;

/* A node of training::Graph. Value 0 is the graph's input, value i + 1 the output of node i. */
typedef struct capstan_node {
  const char* name;
  const char* op;        /* by its ONNX name: "Conv" */
  const int32_t* inputs; /* [input_count], values of earlier nodes */
  int32_t input_count;
  int32_t attribute_count;
  const capstan_attribute* attributes; /* [attribute_count], with all defaults */
} capstan_node;

/* Precision of multiplications. Weights, gradients, loss and sums are always float32. */
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
  int32_t input_rank;
  int32_t node_count;
  int32_t parameter_count;
  const int64_t* input_shape; /* [input_rank], of one sample: channels, height, width */
  const capstan_node* nodes;  /* [node_count], in forward order, the loss last */
  /* [parameter_count], in floats from the start of the flat vector. In training::Graph's order of
   * parameters, including running statistics. */
  const int64_t* parameter_offsets;
  int64_t total_floats; /* of the flat vector */
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
  float image_scale; /* only uint8: value = byte * image_scale + image_shift */
  float image_shift;
  /* What random draws depend on. */
  const int64_t* ids; /* [count], places in the data set; null if nothing is drawn */
  uint64_t seed;
  uint32_t epoch;
  const float* targets; /* [count, target_size], of a loss that takes numbers; else null */
  int64_t target_size;  /* numbers of a sample's target; 0: the loss takes labels */
} capstan_batch;

typedef struct capstan_result {
  double loss_sum;
  int64_t correct;
} capstan_result;

typedef struct capstan_plan capstan_plan; /* defined by the plug-in */

/* Several plans of one model that compute a step together: engine/device/group.h. */
typedef struct capstan_group capstan_group; /* defined by the plug-in */

typedef struct capstan_group_request {
  capstan_plan* const* plans; /* compiled alike; must live until the group is freed */
  const int32_t* devices;     /* of each plan; the same one twice counts as two devices */
  int32_t plan_count;
  int32_t deterministic;      /* 1: only peer copies, additions in the order of the step's ops */
  const int64_t* bucket_ends; /* floats, rising; the last is total_floats */
  int32_t bucket_count;
  double timeout_seconds; /* longest wait without any progress */
  int32_t slot_count;     /* of a usual step; a step with more allocates them then */
  /* Floats of the optimizer's state per weight, 0 to 3; memory is reserved for them. The state of
   * weight i lies at [i * state_floats, (i + 1) * state_floats) of a state vector. */
  int32_t state_floats;
} capstan_group_request;

typedef struct capstan_group_info {
  int32_t reduces;             /* 1: supports the REDUCE operations */
  const char* summary;         /* "2 GPUs, sums by NCCL 2.28.9"; as long as the group */
  const int64_t* device_bytes; /* [plan_count], without the plans' own; as long as the group */
} capstan_group_info;

/* On one slice, on the device that owns it: engine/collective/collective.h. */
enum capstan_fold_kind {
  CAPSTAN_FOLD_TAKE = 0,
  CAPSTAN_FOLD_ADD_LANE = 1,
  CAPSTAN_FOLD_ADD_SLOT = 2,
  CAPSTAN_FOLD_REDUCE = 3,
  CAPSTAN_FOLD_REDUCE_ADD = 4,
  CAPSTAN_FOLD_EMIT = 5
};
typedef struct capstan_fold_op {
  int32_t kind, round, slot, device, from, block; /* block: of an EMIT, index in `blocks` */
} capstan_fold_op;

typedef struct capstan_group_step {
  const capstan_batch* lanes; /* [round_count][plan_count]; count 0: no lane */
  int32_t round_count;
  int32_t op_count;
  const capstan_fold_op* ops; /* rounds rising; ends with an EMIT */
  int32_t slot_count;
  int32_t block_count; /* lane blocks that the lanes make */
  double loss_scale;
  float* const* blocks;    /* out [block_count]: total_floats each, in host memory; null: the sum
                            * of the one block stays on the devices, for group_update */
  int32_t* finite;         /* out, if blocks is null: 1 if the sum has no infinity and no NaN */
  capstan_result* results; /* out [round_count][plan_count] */
  /* Called when bucket `bucket` of blocks[block] has been written, in rising order for each block,
   * in the calling thread. May be null. */
  void (*ready)(void* context, int32_t block, int32_t bucket);
  void* context;
} capstan_group_step;

/* The formula that updates a weight, with the bits of training/optim/rule_numbers.h. */
enum capstan_rule_form {
  CAPSTAN_RULE_KEEP = 0, /* changes nothing */
  CAPSTAN_RULE_SGD = 1,
  CAPSTAN_RULE_MOMENTUM = 2,
  CAPSTAN_RULE_NESTEROV = 3,
  CAPSTAN_RULE_ADAM = 4,
  CAPSTAN_RULE_ADAMW = 5,
  CAPSTAN_RULE_RMSPROP = 6,
  CAPSTAN_RULE_RMSPROP_CENTERED = 7,
  CAPSTAN_RULE_RMSPROP_MOMENTUM = 8,
  CAPSTAN_RULE_RMSPROP_CENTERED_MOMENTUM = 9,
  CAPSTAN_RULE_ADAGRAD = 10,
  CAPSTAN_RULE_FTRL = 11,
  CAPSTAN_RULE_STATISTIC = 12 /* a running statistic; has no state */
};
#define CAPSTAN_RULE_NUMBERS 9

/* A run of floats of the flat vector that are updated alike. */
typedef struct capstan_update_part {
  int64_t size; /* floats, above 0 */
  float scale;  /* factor on the sum */
  float clip;   /* each scaled number is then clipped to [-clip, clip]; 0: it is not */
  int32_t form;
  int32_t decay;                       /* 1: the form decays weights */
  float numbers[CAPSTAN_RULE_NUMBERS]; /* of the form, in the order of its constants */
} capstan_update_part;

typedef struct capstan_update {
  const capstan_update_part* parts; /* [part_count], one after the other; the whole flat vector */
  int32_t part_count;
} capstan_update;

typedef struct capstan_plugin_table {
  int32_t abi; /* CAPSTAN_PLUGIN_ABI of the plug-in; always the first field */
  int32_t size_bytes;

  /* Reports devices and versions. UNAVAILABLE: nothing can be computed. `probe` then has the
   * versions, and `error` the reason unless the versions show it. */
  int32_t (*probe)(capstan_probe* probe, capstan_error* error);
  /* Uses no context and no memory of the device. NOT_FOUND: no such device. */
  int32_t (*device_info)(int32_t device, capstan_device_info* info, capstan_error* error);

  /* RESOURCE_EXHAUSTED: not enough memory; the text has planned, free and total bytes and a batch
   * that would fit. UNIMPLEMENTED: an operator, attribute, precision or form of graph, by name.
   * INVALID_ARGUMENT: not a graph, or offsets that do not fit into the flat vector. */
  int32_t (*compile)(const capstan_compile_request* request, capstan_plan** plan,
                     capstan_error* error);
  void (*plan_info)(const capstan_plan* plan, capstan_plan_info* info);
  void (*free_plan)(capstan_plan* plan); /* null is allowed */

  int32_t (*load_weights)(capstan_plan* plan, const float* weights, capstan_error* error);
  /* The caller has checked labels and counts, and weights are loaded. INTERNAL: the device failed
   * (a CUDA fault). The text has call, code and device; the plan cannot be used any more. */
  int32_t (*compute_lane)(capstan_plan* plan, const capstan_batch* batch, double loss_scale,
                          float* gradient, capstan_result* result, capstan_error* error);
  int32_t (*evaluate)(capstan_plan* plan, const capstan_batch* batch, capstan_result* result,
                      capstan_error* error);
  int32_t (*predict)(capstan_plan* plan, const capstan_batch* batch, float* logits,
                     capstan_error* error);

  /* INVALID_ARGUMENT: a plan of another device than the request says, plans that differ, or more
   * state than a form has.
   * UNAVAILABLE: the library that sums between GPUs is missing. RESOURCE_EXHAUSTED: not enough
   * memory for slots and state. Two threads must never use a plan of a group at the same time,
   * neither by itself nor through the group. */
  int32_t (*make_group)(const capstan_group_request* request, capstan_group** group,
                        capstan_error* error);
  void (*group_info)(const capstan_group* group, capstan_group_info* info);
  void (*free_group)(capstan_group* group); /* null is allowed; call it before freeing its plans */
  /* load_weights for all plans. The vector is copied from the host once. `state`, state_floats *
   * total_floats long, may be null; group_update must then not need any.
   * INVALID_ARGUMENT: it is not null in a group without state. */
  int32_t (*group_load_weights)(capstan_group* group, const float* weights, const float* state,
                                capstan_error* error);
  /* DEADLINE_EXCEEDED: a device or the sum between devices made no progress for timeout_seconds.
   * The text names GPU and bucket. Group and plans cannot be used any more, and their resources are
   * left behind. INTERNAL: as compute_lane. */
  int32_t (*group_compute)(capstan_group* group, const capstan_group_step* step,
                           capstan_error* error);
  /* Updates the weights and the state on the devices with the sum that stayed there, which is then
   * gone. Returns before it is done; later calls wait for it. INVALID_ARGUMENT: parts that are not
   * the whole vector, or a form that there is not. FAILED_PRECONDITION: there is no sum, or not the
   * state that a form needs. Nothing has changed then. */
  int32_t (*group_update)(capstan_group* group, const capstan_update* update, capstan_error* error);
  /* `state` may be null. FAILED_PRECONDITION: none was loaded. */
  int32_t (*group_read_weights)(capstan_group* group, float* weights, float* state,
                                capstan_error* error);

  /* Keeps images [first, first + count) of `whole`, float32, on the device; in rising order from 0.
   * RESOURCE_EXHAUSTED: they do not fit; nothing is kept and the plan stays usable. */
  int32_t (*keep_images)(capstan_plan* plan, const float* images, int64_t first, int64_t count,
                         int64_t whole, capstan_error* error);
} capstan_plugin_table;

/* The only exported function. Returns the plug-in's table, which lives as long as the plug-in is
 * loaded. */
typedef const capstan_plugin_table* (*capstan_plugin_factory)(void);

#ifdef __cplusplus
}
#endif

#endif /* CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_ABI_H_ */
