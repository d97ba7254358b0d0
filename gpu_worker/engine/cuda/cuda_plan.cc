#include "gpu_worker/engine/cuda/cuda_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"
#include "training/random/philox.h"

namespace capstan::engine::cuda {
namespace {

// A slot holds a piece of a batch. While one is being copied the next is filled.
constexpr int64_t kSlotBytes = 1 << 20;
constexpr size_t kCounts = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaPlan>> CudaPlan::Create(const capstan_compile_request& request) {
  const absl::Status precision = CheckPrecision(request.precision);
  if (!precision.ok()) return precision;
  absl::StatusOr<CardProgram> program = MakeCardProgram(request);
  if (!program.ok()) return program.status();
  auto plan = std::unique_ptr<CudaPlan>(new CudaPlan(*std::move(program), request));
  const absl::Status status = plan->Build();
  if (!status.ok()) return status;
  return plan;
}

CudaPlan::CudaPlan(CardProgram program, const capstan_compile_request& request)
    : program_(std::move(program)),
      device_(request.device),
      max_batch_(request.max_batch),
      counts_(std::make_unique<CountCache<std::unique_ptr<CountKernels>>>(kCounts)) {
  context_.rules = {request.precision, request.deterministic != 0};
  context_.element = request.precision == CAPSTAN_PRECISION_BF16   ? Element::kBf16
                     : request.precision == CAPSTAN_PRECISION_FP16 ? Element::kFp16
                                                                   : Element::kFloat;
}

// Errors of a card that failed earlier do not matter here.
CudaPlan::~CudaPlan() {
  cudaSetDevice(device_);
  if (context_.stream != nullptr) cudaStreamSynchronize(context_.stream);
  if (copy_stream_ != nullptr) cudaStreamSynchronize(copy_stream_);
  const bool own_stream = context_.parameter_stream != context_.stream;
  if (own_stream && context_.parameter_stream != nullptr) {
    cudaStreamSynchronize(context_.parameter_stream);
  }
  counts_ = nullptr;
  profile_ = nullptr;
  for (cudaEvent_t* const event : Events()) {
    if (*event != nullptr) cudaEventDestroy(*event);
  }
  for (const cudaEvent_t event : piece_ready_) cudaEventDestroy(event);
  if (context_.cudnn != nullptr) cudnnDestroy(context_.cudnn);
  if (context_.parameter_cudnn != nullptr) cudnnDestroy(context_.parameter_cudnn);
  if (context_.lt != nullptr) cublasLtDestroy(context_.lt);
  if (copy_stream_ != nullptr) cudaStreamDestroy(copy_stream_);
  if (own_stream && context_.parameter_stream != nullptr) {
    cudaStreamDestroy(context_.parameter_stream);
  }
  if (context_.stream != nullptr) cudaStreamDestroy(context_.stream);
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
  if (kept_ != nullptr) cudaFree(kept_);
  if (base_ != nullptr) cudaFree(base_);
}

absl::Status CudaPlan::Build() {
  CAPSTAN_CUDA_RETURN(UseDevice(device_));
  CAPSTAN_CUDA_RETURN(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking));
  CAPSTAN_CUDA_RETURN(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking));
  absl::StatusOr<std::unique_ptr<Profile>> profile =
      Profile::FromEnvironment(program_, context_.rules, context_.stream, device_);
  if (!profile.ok()) return profile.status();
  profile_ = *std::move(profile);
  if (profile_ == nullptr) {
    CAPSTAN_CUDA_RETURN(
        cudaStreamCreateWithFlags(&context_.parameter_stream, cudaStreamNonBlocking));
  } else {
    context_.parameter_stream = context_.stream;
  }
  // Before free memory is queried, because the libraries allocate their part here.
  CAPSTAN_CUDA_RETURN(cudnnCreate(&context_.cudnn));
  CAPSTAN_CUDA_RETURN(cudnnSetStream(context_.cudnn, context_.stream));
  CAPSTAN_CUDA_RETURN(cudnnCreate(&context_.parameter_cudnn));
  CAPSTAN_CUDA_RETURN(cudnnSetStream(context_.parameter_cudnn, context_.parameter_stream));
  CAPSTAN_CUDA_RETURN(cublasLtCreate(&context_.lt));
  absl::Status status = AllocateDevice();
  if (!status.ok()) return status;
  status = AllocatePinned();
  if (!status.ok()) return status;
  walk_ = std::make_unique<Walk>(program_, memory_, base_, ElementBytes(context_.rules.precision),
                                 static_cast<int64_t>(sizeof(float)), host_sums_);
  for (cudaEvent_t* const event : Events()) {
    CAPSTAN_CUDA_RETURN(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  read_back_ = PlanReadBack(program_);
  for (size_t i = 0; i < read_back_.size(); ++i) {
    cudaEvent_t event = nullptr;
    CAPSTAN_CUDA_RETURN(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    piece_ready_.push_back(event);
  }
  // The space between the tensors of the gradient always stays zero.
  CAPSTAN_CUDA_RETURN(
      cudaMemsetAsync(base_, 0, static_cast<size_t>(memory_.total_bytes()), context_.stream));
  const absl::StatusOr<CountKernels*> kernels = KernelsOf(max_batch_);
  if (!kernels.ok()) return kernels.status();
  if (program_.trains()) {
    status = (*kernels)->ops->PrepareBackward();
    if (!status.ok()) return status;
  }
  kernels_ = (*kernels)->ops->Describe();
  CAPSTAN_CUDA_RETURN(cudaStreamSynchronize(context_.stream));
  return absl::OkStatus();
}

std::vector<cudaEvent_t*> CudaPlan::Events() {
  std::vector<cudaEvent_t*> events = {&slot_free_[0], &slot_free_[1], &weights_sent_,
                                      &copies_done_,  &context_.fork, &context_.join};
  for (cudaEvent_t& event : context_.parameters_done) events.push_back(&event);
  return events;
}

absl::Status CudaPlan::AllocateDevice() {
  MemoryOptions options;
  options.max_batch = max_batch_;
  options.element_bytes = ElementBytes(context_.rules.precision);
  options.workspace_bytes = kWorkspaceBytes;
  options.conv_workspace = true;
  memory_ = PlanMemory(program_, options);
  size_t free = 0, whole = 0;
  CAPSTAN_CUDA_RETURN(cudaMemGetInfo(&free, &whole));
  const auto bytes = static_cast<size_t>(memory_.total_bytes());
  cudaError_t error = bytes > free ? cudaErrorMemoryAllocation
                                   : cudaMalloc(reinterpret_cast<void**>(&base_), bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error does not stick; the card still works
    return absl::ResourceExhaustedError(OutOfMemoryText(
        program_, options, static_cast<int64_t>(free), static_cast<int64_t>(whole)));
  }
  CAPSTAN_CUDA_RETURN(error);
  context_.workspace = base_ + memory_.workspace;
  context_.parameter_workspace = base_ + memory_.parameter_workspace;
  return absl::OkStatus();
}

absl::Status CudaPlan::AllocatePinned() {
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t offset = end;
    end += (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    return offset;
  };
  const int64_t image_bytes = program_.tensors[0].elements * max_batch_ * 4;
  const int64_t target_bytes = program_.target_numbers() * max_batch_ * 4;
  const int64_t slot = std::min(kSlotBytes, std::max(image_bytes, target_bytes));
  const int64_t slots[2] = {take(slot), take(slot)};
  const int64_t header = take(memory_.images - memory_.header + max_batch_ * 4);
  const int64_t ids = take(program_.draws ? max_batch_ * 8 : 0);
  const int64_t flat_bytes = program_.total_floats * static_cast<int64_t>(sizeof(float));
  const int64_t weights = take(flat_bytes), gradient = take(flat_bytes);
  const int64_t logits = take(max_batch_ * program_.classes * 4);
  const int64_t sums = take(static_cast<int64_t>(sizeof(capstan_result)));
  const cudaError_t error =
      cudaMallocHost(reinterpret_cast<void**>(&pinned_), static_cast<size_t>(end));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return HostOutOfMemory(
        absl::StrCat("out of pinned host memory: the plan needs ", end, " bytes of it"));
  }
  CAPSTAN_CUDA_RETURN(error);
  slots_[0] = pinned_ + slots[0];
  slots_[1] = pinned_ + slots[1];
  header_ = pinned_ + header;
  host_ids_ = pinned_ + ids;
  host_weights_ = reinterpret_cast<float*>(pinned_ + weights);
  host_gradient_ = reinterpret_cast<float*>(pinned_ + gradient);
  host_logits_ = reinterpret_cast<float*>(pinned_ + logits);
  host_sums_ = reinterpret_cast<capstan_result*>(pinned_ + sums);
  // Pieces that no backward writes stay zero.
  std::memset(host_gradient_, 0, static_cast<size_t>(flat_bytes));
  return absl::OkStatus();
}

void CudaPlan::Info(capstan_plan_info* info) const {
  *info = {memory_.arena_bytes, memory_.weight_bytes, memory_.gradient_bytes, 0, kernels_.c_str()};
}

absl::StatusOr<CudaPlan::CountKernels*> CudaPlan::KernelsOf(int64_t count) {
  if (std::unique_ptr<CountKernels>* const found = counts_->Find(count)) return found->get();
  auto kernels = std::make_unique<CountKernels>();
  absl::StatusOr<std::unique_ptr<CudaOperations>> ops =
      CudaOperations::Create(program_, context_, *walk_, count);
  if (!ops.ok()) return ops.status();
  kernels->ops = *std::move(ops);
  return counts_->Insert(count, std::move(kernels)).get();
}

absl::Status CudaPlan::LoadWeights(const float* weights) {
  if (!broken_.ok()) return broken_;
  const auto load = [&]() -> absl::Status {
    CAPSTAN_CUDA_RETURN(UseDevice(device_));
    const size_t bytes = static_cast<size_t>(program_.total_floats) * sizeof(float);
    CAPSTAN_CUDA_RETURN(cudaEventSynchronize(weights_sent_));  // the pinned copy is free again
    std::memcpy(host_weights_, weights, bytes);
    const absl::StatusOr<CountKernels*> kernels = KernelsOf(max_batch_);
    if (!kernels.ok()) return kernels.status();
    CudaOperations& ops = *(*kernels)->ops;
    const absl::Status status =
        Replay(weights_graph_, [this, &ops] { return EnqueueWeights(ops); });
    if (!status.ok()) return status;
    CAPSTAN_CUDA_RETURN(cudaEventRecord(weights_sent_, context_.stream));
    return absl::OkStatus();
  };
  const absl::Status status = load();
  broken_ = status;
  return status;
}

absl::Status CudaPlan::EnqueueWeights(CudaOperations& ops) {
  const size_t bytes = static_cast<size_t>(program_.total_floats) * sizeof(float);
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(walk_->at(memory_.weights), host_weights_, bytes,
                                      cudaMemcpyHostToDevice, context_.stream));
  walk_->CopyWeights(Timed(ops));
  return ops.TakeStatus();
}

absl::Status CudaPlan::UseWeights() {
  if (!broken_.ok()) return broken_;
  CAPSTAN_CUDA_RETURN(UseDevice(device_));
  if (!program_.copies_weights()) return absl::OkStatus();
  const absl::StatusOr<CountKernels*> kernels = KernelsOf(max_batch_);
  if (!kernels.ok()) return kernels.status();
  CudaOperations& ops = *(*kernels)->ops;
  const auto copy = [this, &ops] {
    walk_->CopyWeights(ops);
    return ops.TakeStatus();
  };
  // A profile contains only the times of Run.
  return profile_ != nullptr ? copy() : Replay(use_weights_graph_, copy);
}

absl::Status CudaPlan::KeepImages(const float* images, int64_t first, int64_t count,
                                  int64_t whole) {
  if (!broken_.ok()) return broken_;
  CAPSTAN_CUDA_RETURN(UseDevice(device_));
  const int64_t image_bytes = program_.tensors[0].elements * static_cast<int64_t>(sizeof(float));
  if (first == 0) {
    if (kept_ != nullptr) return absl::FailedPreconditionError("images are kept already");
    size_t free = 0, all = 0;
    CAPSTAN_CUDA_RETURN(cudaMemGetInfo(&free, &all));
    const auto bytes = static_cast<size_t>(whole * image_bytes);
    // Leave half of the free memory to others, because keeping images is optional.
    cudaError_t error = bytes > free / 2 ? cudaErrorMemoryAllocation
                                         : cudaMalloc(reinterpret_cast<void**>(&kept_), bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrCat(
          whole, " images need ", bytes, " bytes, half of ", free, " free ones may be taken"));
    }
    CAPSTAN_CUDA_RETURN(error);
    context_.kept = reinterpret_cast<const float*>(kept_);
    kept_images_ = whole;
  }
  if (first < 0 || count < 1 || whole != kept_images_ || first + count > whole) {
    return absl::InvalidArgumentError(absl::StrCat("images ", first, " to ", first + count, " of ",
                                                   whole, ", want 0 to ", kept_images_));
  }
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(kept_ + first * image_bytes, images,
                                      static_cast<size_t>(count * image_bytes),
                                      cudaMemcpyHostToDevice, context_.stream));
  CAPSTAN_CUDA_RETURN(cudaStreamSynchronize(context_.stream));
  return absl::OkStatus();
}

absl::Status CudaPlan::Run(Pass pass, const capstan_batch& batch, double loss_scale,
                           float* gradient, float* logits, capstan_result* result) {
  if (!broken_.ok()) return broken_;
  const absl::Status status = RunOnce(pass, batch, loss_scale, gradient, logits, result);
  broken_ = status;
  return status;
}

absl::Status CudaPlan::RunOnce(Pass pass, const capstan_batch& batch, double loss_scale,
                               float* gradient, float* logits, capstan_result* result) {
  CAPSTAN_CUDA_RETURN(UseDevice(device_));
  const absl::StatusOr<CountKernels*> kernels = KernelsOf(batch.count);
  if (!kernels.ok()) return kernels.status();
  if (pass == Pass::kTrain && program_.trains()) {
    const absl::Status status = (*kernels)->ops->PrepareBackward();
    if (!status.ok()) return status;
  }
  absl::Status status = CopyIn(batch, loss_scale);
  if (!status.ok()) return status;
  status = Launch(**kernels, pass, batch.count, batch.image_type);
  if (!status.ok()) return status;
  return CopyOut(pass, batch.count, gradient, logits, result);
}

absl::Status CudaPlan::CopyIn(const capstan_batch& batch, double loss_scale) {
  BatchHeader header = {loss_scale, batch.image_scale, batch.image_shift, {0, 0}, batch.epoch, 0};
  const training::PhiloxKey key = training::MakePhiloxKey(batch.seed, training::Purpose::kDropout);
  std::copy(key.begin(), key.end(), header.dropout_key);
  std::memcpy(header_, &header, sizeof header);
  size_t header_bytes = sizeof header;
  const bool numbers = program_.loss().squared_error;
  if (!numbers && batch.labels != nullptr) {
    const auto label_bytes = static_cast<size_t>(batch.count) * sizeof(int32_t);
    std::memcpy(header_ + sizeof header, batch.labels, label_bytes);
    header_bytes += label_bytes;
  }
  const bool kept = batch.image_type == CAPSTAN_IMAGE_KEPT;
  if (kept) {
    // Places have few bytes, so one copy moves them with the header.
    const auto places = static_cast<size_t>(memory_.images - memory_.header);
    const size_t place_bytes = static_cast<size_t>(batch.count) * sizeof(int32_t);
    std::memcpy(header_ + places, batch.images, place_bytes);
    header_bytes = places + place_bytes;
  }
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(walk_->at(memory_.header), header_, header_bytes,
                                      cudaMemcpyHostToDevice, context_.stream));
  if (program_.draws && batch.ids != nullptr) {
    const size_t id_bytes = static_cast<size_t>(batch.count) * sizeof(int64_t);
    std::memcpy(host_ids_, batch.ids, id_bytes);
    CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(walk_->at(memory_.ids), host_ids_, id_bytes,
                                        cudaMemcpyHostToDevice, context_.stream));
  }
  if (numbers && batch.targets != nullptr) {
    const absl::Status status = CopyThroughSlots(
        batch.targets,
        batch.count * program_.target_numbers() * static_cast<int64_t>(sizeof(float)),
        walk_->at(memory_.targets));
    if (!status.ok()) return status;
  }
  if (kept) return absl::OkStatus();
  char* const place = GoesStraight(batch.image_type) ? static_cast<char*>(walk_->value(0))
                                                     : walk_->at(memory_.images);
  return CopyThroughSlots(batch.images,
                          batch.count * SampleBytes(batch.image_type, program_.tensors[0].elements),
                          place);
}

absl::Status CudaPlan::CopyThroughSlots(const void* from, int64_t bytes, char* place) {
  int slot = 0;
  for (int64_t begin = 0; begin < bytes; begin += kSlotBytes, slot = 1 - slot) {
    const auto piece = static_cast<size_t>(std::min(kSlotBytes, bytes - begin));
    CAPSTAN_CUDA_RETURN(cudaEventSynchronize(slot_free_[slot]));
    std::memcpy(slots_[slot], static_cast<const char*>(from) + begin, piece);
    CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(place + begin, slots_[slot], piece, cudaMemcpyHostToDevice,
                                        context_.stream));
    CAPSTAN_CUDA_RETURN(cudaEventRecord(slot_free_[slot], context_.stream));
  }
  return absl::OkStatus();
}

template <typename Launches>
absl::Status CudaPlan::Replay(Captured& captured, Launches launches) {
  if (!captured.warm || profile_ != nullptr) {
    if (profile_ != nullptr) profile_->Count(captured.warm);
    captured.warm = true;
    return launches();
  }
  if (captured.graph == nullptr) {
    CAPSTAN_CUDA_RETURN(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal));
    const absl::Status status = launches();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(context_.stream, &graph);
    if (!status.ok()) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();  // clears the error about an unjoined branch, a result of this one
      return status;
    }
    CAPSTAN_CUDA_RETURN(ended);
    const cudaError_t made = cudaGraphInstantiate(&captured.graph, graph, 0);
    cudaGraphDestroy(graph);
    CAPSTAN_CUDA_RETURN(made);
  }
  CAPSTAN_CUDA_RETURN(cudaGraphLaunch(captured.graph, context_.stream));
  return absl::OkStatus();
}

absl::Status CudaPlan::Launch(CountKernels& kernels, Pass pass, int64_t count, int image_type) {
  return Replay(kernels.passes[static_cast<size_t>(GraphIndex(pass, image_type))],
                [&] { return Enqueue(*kernels.ops, pass, count, image_type); });
}

Operations& CudaPlan::Timed(CudaOperations& ops) {
  return profile_ == nullptr ? ops : profile_->Wrap(ops);
}

absl::Status CudaPlan::Enqueue(CudaOperations& ops, Pass pass, int64_t count, int image_type) {
  Operations& run = Timed(ops);
  walk_->Forward(run, count, GoesStraight(image_type) ? -1 : image_type, pass == Pass::kTrain);
  if (pass == Pass::kPredict) {
    const absl::Status status = ops.TakeStatus();
    return status.ok() ? EnqueueLogits(count) : status;
  }
  walk_->Loss(run, count, pass == Pass::kTrain);
  const bool backward = pass == Pass::kTrain && program_.trains();
  if (backward) {
    ops.set_on_stage_done([this, &ops](int stage) -> absl::Status {
      for (size_t piece = 0; piece < read_back_.size(); ++piece) {
        if (read_back_[piece].stage != stage) continue;
        absl::Status status;
        // Its own gradients are on the plan's stream, those before may be on the other one.
        if (!program_.stages[stage].linear()) status = ops.Join();
        if (status.ok()) status = EnqueueReadBack(piece, ops.final_stream());
        if (!status.ok()) return status;
      }
      return absl::OkStatus();
    });
    walk_->Backward(run, count);
    ops.set_on_stage_done(nullptr);
  }
  const absl::Status status = ops.TakeStatus();
  if (!status.ok()) return status;
  if (backward) {
    // The copies are part of the pass, because the next pass must not overwrite their source.
    CAPSTAN_CUDA_RETURN(cudaEventRecord(copies_done_, copy_stream_));
    CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(context_.stream, copies_done_, 0));
  }
  return absl::OkStatus();
}

absl::Status CudaPlan::EnqueueLogits(int64_t count) {
  const Stage& loss = program_.loss();
  const void* logits = walk_->logits();
  if (loss.rows > 1) {  // the last row of each sample
    const int64_t classes = program_.classes;
    CopyWork work;
    work.loop = MakeLoop<2>(
        count, {classes}, {Strided{classes, {1}}, Strided{program_.tensors[loss.x].elements, {1}}});
    work.from_first = (loss.rows - 1) * classes;
    void* const answers = walk_->at(memory_.scratch);
    CAPSTAN_CUDA_RETURN(
        LaunchCopy(context_.stream, context_.element, work, walk_->logits(), answers));
    logits = answers;
  }
  const int64_t bytes = count * program_.classes * ElementBytes(context_.rules.precision);
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(host_logits_, logits, static_cast<size_t>(bytes),
                                      cudaMemcpyDeviceToHost, context_.stream));
  return absl::OkStatus();
}

absl::Status CudaPlan::EnqueueReadBack(size_t piece, cudaStream_t final_stream) {
  const ReadBack& range = read_back_[piece];
  CAPSTAN_CUDA_RETURN(cudaEventRecord(piece_ready_[piece], final_stream));
  CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(copy_stream_, piece_ready_[piece], 0));
  CAPSTAN_CUDA_RETURN(cudaMemcpyAsync(
      host_gradient_ + range.begin,
      walk_->at(memory_.gradient + range.begin * static_cast<int64_t>(sizeof(float))),
      static_cast<size_t>(range.end - range.begin) * sizeof(float), cudaMemcpyDeviceToHost,
      copy_stream_));
  return absl::OkStatus();
}

absl::Status CudaPlan::CopyOut(Pass pass, int64_t count, float* gradient, float* logits,
                               capstan_result* result) {
  CAPSTAN_CUDA_RETURN(cudaStreamSynchronize(context_.stream));
  if (pass == Pass::kTrain) {
    // All zeros if nothing is trained.
    std::memcpy(gradient, host_gradient_,
                static_cast<size_t>(program_.total_floats) * sizeof(float));
  }
  if (pass == Pass::kPredict) {
    WidenInPlace(context_.element, count * program_.classes, host_logits_);
    std::memcpy(logits, host_logits_, static_cast<size_t>(count * program_.classes) * 4);
  } else {
    *result = *host_sums_;
  }
  return absl::OkStatus();
}

}  // namespace capstan::engine::cuda
