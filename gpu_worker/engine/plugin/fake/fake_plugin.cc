// A plug-in without a card, for tests. Its devices run the programs of cuda/ through plain loops,
// and every graph that is not a chain by the references of its operators.
//
// The environment, read at every call of the factory and of the table:
//   CAPSTAN_FAKE_DEVICES    number of devices (2)
//   CAPSTAN_FAKE_ELEMENTS   double or float (double), for fp32 and tf32; bf16 and fp16 are rounded
//                           where the CUDA plug-in rounds them
//   CAPSTAN_FAKE_FREE_MIB   memory of each device (1024); its plans share it
//   CAPSTAN_FAKE_OVERFLOW   gradients at a loss scale above this number are infinite (none)
//   CAPSTAN_FAKE_FAIL       old_abi, no_table, old_driver, no_driver; fault (the device fails in
//                           the next lane, and all its plans fail from then on); host_memory
//                           (compile finds none)
//   CAPSTAN_FAKE_GROUP      faults of groups: fake_streams.h
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/chain.h"
#include "gpu_worker/engine/cuda/rules.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "gpu_worker/engine/plugin/fake/fake_operations.h"
#include "gpu_worker/engine/plugin/fake/fake_plan.h"
#include "gpu_worker/engine/plugin/fake/fake_streams.h"
#include "services/check/check.h"

namespace capstan::engine::cuda {
namespace {

constexpr int64_t kFakeWorkspaceBytes = 1 << 16;

int DeviceCount() { return std::atoi(Environment("CAPSTAN_FAKE_DEVICES", "2").c_str()); }

int32_t Answer(const absl::Status& status, capstan_error* error) {
  if (status.ok()) return 0;
  const absl::string_view text = status.message();
  const size_t length = std::min(text.size(), sizeof error->text - 1);
  std::memcpy(error->text, text.data(), length);
  error->text[length] = 0;
  return static_cast<int32_t>(status.code());
}

}  // namespace
}  // namespace capstan::engine::cuda

// The ABI's group.
struct capstan_group {
  std::unique_ptr<capstan::engine::cuda::Group> group;
  std::string summary;
};

namespace capstan::engine::cuda {
namespace {

template <typename T>
class FakePlan : public FakePlanBase {
 public:
  FakePlan(CardProgram program, const MemoryOptions& options, int device)
      : FakePlanBase(device, PlanMemory(program, options).total_bytes(), program.total_floats,
                     program.tensors[0].elements),
        program_(std::move(program)),
        memory_(PlanMemory(program_, options)),
        // Garbage, so that reads of unwritten memory show. The gradient's padding is zero.
        bytes_(static_cast<size_t>(memory_.total_bytes()) + kAlignBytes, '\xff'),
        walk_(program_, memory_, Aligned(), sizeof(T), sizeof(Sum<T>), &sums_),
        ops_(program_) {
    std::memset(walk_.at(memory_.gradient), 0, static_cast<size_t>(memory_.gradient_bytes));
    for (const Stage& stage : program_.stages) absl::StrAppend(&kernels_, stage.name, ": loops\n");
  }

  void Info(capstan_plan_info* info) const override {
    *info = {memory_.arena_bytes, memory_.weight_bytes, memory_.gradient_bytes, 0,
             kernels_.c_str()};
  }

  void LoadWeights(const float* weights) override {
    auto* const flat = reinterpret_cast<Sum<T>*>(walk_.at(memory_.weights));
    for (int64_t i = 0; i < program_.total_floats; ++i) flat[i] = weights[i];
    walk_.CopyWeights(ops_);
  }

  absl::Status Run(const capstan_batch& batch, double loss_scale, float* gradient, float* logits,
                   capstan_result* result) override {
    const absl::Status device = CheckDevice(/*training=*/gradient != nullptr);
    if (!device.ok()) return device;
    ops_.set_kept(kept());
    const int64_t bytes = batch.count * SampleBytes(batch.image_type, program_.tensors[0].elements);
    std::memcpy(walk_.at(memory_.images), batch.images, static_cast<size_t>(bytes));
    auto* const header = reinterpret_cast<BatchHeader*>(walk_.at(memory_.header));
    *header = {loss_scale, batch.image_scale, batch.image_shift, {0, 0}, 0, 0};
    if (batch.labels != nullptr) {
      std::memcpy(static_cast<void*>(header + 1), batch.labels,
                  static_cast<size_t>(batch.count) * sizeof(int32_t));
    }
    walk_.Forward(ops_, batch.count, batch.image_type, /*training=*/gradient != nullptr);
    if (logits != nullptr) {
      CopyOut(static_cast<const T*>(walk_.logits()), batch.count * program_.classes, logits);
      return absl::OkStatus();
    }
    walk_.Loss(ops_, batch.count, gradient != nullptr);
    *result = sums_;
    if (gradient != nullptr) {
      walk_.Backward(ops_, batch.count);
      CopyOut(reinterpret_cast<const Sum<T>*>(walk_.at(memory_.gradient)), program_.total_floats,
              gradient);
      Overflow(loss_scale, gradient);
    }
    return absl::OkStatus();
  }

 private:
  char* Aligned() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kAlignBytes - at % kAlignBytes) % kAlignBytes;
  }
  template <typename From>
  static void CopyOut(const From* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
  }

  const CardProgram program_;
  const MemoryPlan memory_;
  std::vector<char> bytes_;
  capstan_result sums_ = {};
  const Walk walk_;
  FakeOperations<T> ops_;
  std::string kernels_;
};

int32_t Probe(capstan_probe* probe, capstan_error* error) {
  *probe = {DeviceCount(), 13000, 13000, "plain loops for tests"};
  if (Fails("old_driver")) {
    *probe = {0, 12040, 13000, "plain loops for tests"};
    return Answer(absl::UnavailableError("CUDA driver version is insufficient"), error);
  }
  if (Fails("no_driver")) {
    *probe = {0, 0, 13000, "plain loops for tests"};
    return Answer(absl::UnavailableError("no driver"), error);
  }
  return 0;
}

int32_t DeviceInfo(int32_t device, capstan_device_info* info, capstan_error* error) {
  if (device < 0 || device >= DeviceCount() || device >= kMaxFakeDevices) {
    return Answer(absl::NotFoundError(absl::StrCat("no fake device ", device)), error);
  }
  static constexpr const char* kUuids[kMaxFakeDevices] = {
      "GPU-fake-0",  "GPU-fake-1",  "GPU-fake-2",  "GPU-fake-3", "GPU-fake-4",  "GPU-fake-5",
      "GPU-fake-6",  "GPU-fake-7",  "GPU-fake-8",  "GPU-fake-9", "GPU-fake-10", "GPU-fake-11",
      "GPU-fake-12", "GPU-fake-13", "GPU-fake-14", "GPU-fake-15"};
  *info = {"fake card", WholeBytes(), kUuids[device]};
  return 0;
}

template <typename T>
absl::Status MakePlan(const capstan_compile_request& request, capstan_plan** plan) {
  absl::StatusOr<CardProgram> program = MakeCardProgram(request);
  if (!program.ok()) return program.status();
  MemoryOptions options;
  options.max_batch = request.max_batch;
  options.element_bytes = sizeof(T);
  options.flat_bytes = sizeof(Sum<T>);
  options.workspace_bytes = kFakeWorkspaceBytes;
  const int64_t free = FreeBytes(request.device);
  if (PlanMemory(*program, options).total_bytes() > free) {
    return absl::ResourceExhaustedError(OutOfMemoryText(*program, options, free, WholeBytes()));
  }
  *plan = new FakePlan<T>(*std::move(program), options, request.device);
  return absl::OkStatus();
}

int32_t Compile(const capstan_compile_request* request, capstan_plan** plan, capstan_error* error) {
  capstan_device_info info = {};
  if (const int32_t code = DeviceInfo(request->device, &info, error); code != 0) return code;
  if (const absl::Status status = CheckPrecision(request->precision); !status.ok()) {
    return Answer(status, error);
  }
  try {
    if (Fails("host_memory")) throw std::bad_alloc();
    absl::StatusOr<ReceivedGraph> received = ReceiveGraph(*request);
    if (!received.ok()) return Answer(received.status(), error);
    if (!IsPlainChain(received->graph)) {
      return Answer(MakeReferencePlan(*std::move(received), *request, plan), error);
    }
    const bool wide = Environment("CAPSTAN_FAKE_ELEMENTS", "double") == "double";
    switch (request->precision) {
      case CAPSTAN_PRECISION_BF16:
        return Answer(MakePlan<Bf16>(*request, plan), error);
      case CAPSTAN_PRECISION_FP16:
        return Answer(MakePlan<Fp16>(*request, plan), error);
      default:
        return Answer(wide ? MakePlan<double>(*request, plan) : MakePlan<float>(*request, plan),
                      error);
    }
  } catch (const std::bad_alloc&) {
    return Answer(absl::AbortedError("the host is out of memory"), error);
  }
}

void GetPlanInfo(const capstan_plan* plan, capstan_plan_info* info) { plan->Info(info); }
void FreePlan(capstan_plan* plan) { delete plan; }

int32_t LoadWeights(capstan_plan* plan, const float* weights, capstan_error* error) {
  plan->LoadWeights(weights);
  return 0;
}

int32_t ComputeLane(capstan_plan* plan, const capstan_batch* batch, double loss_scale,
                    float* gradient, capstan_result* result, capstan_error* error) {
  return Answer(plan->Run(*batch, loss_scale, gradient, nullptr, result), error);
}

int32_t Evaluate(capstan_plan* plan, const capstan_batch* batch, capstan_result* result,
                 capstan_error* error) {
  return Answer(plan->Run(*batch, 1, nullptr, nullptr, result), error);
}

int32_t Predict(capstan_plan* plan, const capstan_batch* batch, float* logits,
                capstan_error* error) {
  return Answer(plan->Run(*batch, 1, nullptr, logits, nullptr), error);
}

int32_t MakeGroup(const capstan_group_request* request, capstan_group** group,
                  capstan_error* error) {
  std::vector<GroupMember> members;
  std::vector<FakeMember> fakes;
  std::set<int> cards;
  for (int i = 0; i < request->plan_count; ++i) {
    capstan_plan* const plan = request->plans[i];
    members.push_back({plan->device(), plan->total_floats()});
    cards.insert(plan->device());
    FakeMember fake;
    fake.device = plan->device();
    fake.image_elements = plan->image_elements();
    fake.load = [plan](const float* weights) { plan->LoadWeights(weights); };
    fake.take = [device = plan->device()](int64_t bytes) -> absl::Status {
      const int64_t free = FreeBytes(device);
      if (bytes > free) {
        return absl::ResourceExhaustedError(
            absl::StrCat("out of GPU memory: fake device ", device, " needs another ", bytes,
                         " bytes to sum its lanes, and has ", free));
      }
      TakeBytes(device, bytes);
      return absl::OkStatus();
    };
    fake.train = [plan](const capstan_batch& batch, double loss_scale, float* gradient,
                        capstan_result* result) {
      return plan->Run(batch, loss_scale, gradient, nullptr, result);
    };
    fakes.push_back(std::move(fake));
  }
  if (absl::Status status = CheckGroup(*request, members); !status.ok()) {
    return Answer(status, error);
  }
  // As NCCL: never with a card that is listed twice.
  const bool reduces = request->deterministic == 0 && cards.size() == members.size();
  std::vector<int64_t> ends(request->bucket_ends, request->bucket_ends + request->bucket_count);
  auto made = std::make_unique<Group>(MakeFakeStreams(std::move(fakes), std::move(ends), reduces),
                                      *request);
  if (absl::Status status = made->Reserve(); !status.ok()) return Answer(status, error);
  *group = new capstan_group{std::move(made), absl::StrCat(members.size(), " fake cards, sums by ",
                                                           reduces ? "meeting" : "copies")};
  return 0;
}

void GetGroupInfo(const capstan_group* group, capstan_group_info* info) {
  *info = {group->group->reduces(), group->summary.c_str(), group->group->device_bytes().data()};
}
void FreeGroup(capstan_group* group) { delete group; }

int32_t GroupLoadWeights(capstan_group* group, const float* weights, const float* state,
                         capstan_error* error) {
  return Answer(group->group->LoadWeights(weights, state), error);
}

int32_t GroupCompute(capstan_group* group, const capstan_group_step* step, capstan_error* error) {
  return Answer(group->group->Compute(*step), error);
}

int32_t GroupUpdate(capstan_group* group, const capstan_update* update, capstan_error* error) {
  return Answer(group->group->Update(*update), error);
}

int32_t GroupReadWeights(capstan_group* group, float* weights, float* state, capstan_error* error) {
  return Answer(group->group->ReadWeights(weights, state), error);
}

int32_t KeepImages(capstan_plan* plan, const float* images, int64_t first, int64_t count,
                   int64_t whole, capstan_error* error) {
  return Answer(plan->KeepImages(images, first, count, whole), error);
}

constexpr capstan_plugin_table kTable = {CAPSTAN_PLUGIN_ABI,
                                         sizeof(capstan_plugin_table),
                                         Probe,
                                         DeviceInfo,
                                         Compile,
                                         GetPlanInfo,
                                         FreePlan,
                                         LoadWeights,
                                         ComputeLane,
                                         Evaluate,
                                         Predict,
                                         MakeGroup,
                                         GetGroupInfo,
                                         FreeGroup,
                                         GroupLoadWeights,
                                         GroupCompute,
                                         GroupUpdate,
                                         GroupReadWeights,
                                         KeepImages};
constexpr capstan_plugin_table kOldTable = {CAPSTAN_PLUGIN_ABI - 1, 8};

}  // namespace
}  // namespace capstan::engine::cuda

extern "C" __attribute__((visibility("default"))) const capstan_plugin_table* capstan_plugin() {
  namespace cuda = capstan::engine::cuda;
  if (cuda::Fails("no_table")) return nullptr;
  return cuda::Fails("old_abi") ? &cuda::kOldTable : &cuda::kTable;
}
