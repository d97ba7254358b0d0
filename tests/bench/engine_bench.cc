// Samples per second of whole training steps on a device, without any service.
//
// The time of a step includes forward, loss and backward of the lanes, and the plain SGD update
// over the flat vector. There are 8 lanes if a job would have 8, else 1 (networks with batch
// normalization, GPUs). A GPU updates its weights by itself, as with kvstore `device`. With
// --host-updates, and always on CPUs, gradient and weights pass through the host, as with `local`.
// Each step waits for its loss. The time excludes the data, which are random and the same in every
// step. A device with its own memory keeps the images there, unless --brought is given. A run has
// as many steps as fill --seconds; the table has the median and p10 to p90 of the runs. GFLOP/s
// count the graph's multiply-adds, even those whose results the pooling drops.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/engine/device/group.h"
#include "gpu_worker/engine/device/open.h"
#include "training/graph/case_graphs.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/init/init.h"
#include "training/optim/sgd.h"

namespace capstan {
namespace {

struct Flags {
  std::string device = "cpu";
  std::vector<std::string> models = {"lenet", "lenet_d2l"};
  std::vector<int> threads = {1, 2};
  std::string precision = "fp32";
  bool brought = false;
  bool host_updates = false;
  int64_t batch = 256;
  int lanes = 0;
  int runs = 21;
  double seconds = 0.2;
  std::string json;
};

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// The peak memory of this process so far.
int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) * 1024;
  }
  return 0;
}

// "attention" is a layer of a small transformer, with 64 tokens, 3 heads and width 48.
absl::StatusOr<training::Graph> GraphOf(const std::string& model, const training::Shape& input) {
  if (model != "attention") return training::MakeModel(model, 10, input);
  return training::AttentionGraph({.tokens = 64, .inputs = 48, .heads = 3, .head_width = 16});
}

training::Shape InputShape(const std::string& model) {
  if (model.rfind("lenet", 0) == 0 || model == "mlp") return {1, 28, 28};
  return {3, 32, 32};
}

// The default of a job (training/spec).
int DefaultLanes(const std::string& device, const std::string& model, int64_t batch) {
  if (device != "cpu" || training::ModelCouplesSamples(model)) return 1;
  int lanes = 8;
  while (lanes > 1 && batch < 16 * lanes) lanes /= 2;
  return lanes;
}

// One configuration that is ready to run steps.
class Case {
 public:
  Case(engine::Device& device, const std::string& model, int64_t batch, int lanes, int threads,
       engine::Precision precision, bool brought, bool host_updates)
      : graph_(GraphOf(model, InputShape(model)).value()),
        layout_(training::FlatLayout::Create(training::TensorSpecs(graph_)).value()),
        images_(batch * graph_.value_elements(0)),
        labels_(batch),
        weights_(layout_.total_floats()),
        gradient_(layout_.total_floats()) {
    engine::PlanOptions options;
    options.max_batch = batch;
    options.max_lane = (batch + lanes - 1) / lanes;
    options.max_lanes = lanes;
    options.threads = threads;
    options.precision = precision;
    absl::StatusOr<std::unique_ptr<engine::Plan>> plan = device.Compile(graph_, layout_, options);
    if (!plan.ok()) {
      std::cerr << plan.status() << "\n";
      std::exit(2);
    }
    plan_ = *std::move(plan);
    if (plan_->info().max_lanes < lanes) {
      std::cerr << model << ": " << device.name() << " computes one lane at a time, --lanes "
                << lanes << "\n";
      std::exit(2);
    }
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& v : images_) v = uniform(random);
    for (int32_t& v : labels_) v = static_cast<int32_t>(random() % 10);
    // As a job begins. With weights of one size, gradients of deep networks would become denormals.
    training::InitRange(layout_, {}, /*seed=*/1, 0, absl::MakeSpan(weights_));
    batch_ = {images_.data(), labels_.data(), batch};
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t first = batch * i / lanes, end = batch * (i + 1) / lanes;
      lanes_.push_back(
          {images_.data() + first * graph_.value_elements(0), labels_.data() + first, end - first});
    }
    if (!brought && plan_->KeepImages(images_.data(), 0, batch, batch).ok()) {
      for (int32_t i = 0; i < batch; ++i) places_.push_back(i);
      batch_.kept = places_.data();
    }
    auto group = device.MakeGroup({plan_.get()}, {});
    if (host_updates || absl::IsUnimplemented(group.status())) return;
    if (!group.ok()) {
      std::cerr << group.status() << "\n";
      std::exit(2);
    }
    group_ = *std::move(group);
    if (!group_->LoadState(weights_.data(), nullptr).ok()) std::abort();
  }

  double Step() {
    const int64_t batch = static_cast<int64_t>(labels_.size());
    if (group_ != nullptr) {
      const auto kept = group_->ComputeKept(training::LaneTree(1), {{0, 0, batch_}}, 1.0 / batch);
      const auto parts =
          training::UpdateParts(layout_, *training::Sgd::Create({}), {.learning_rate = 0.01});
      if (!group_->Update(parts).ok()) std::abort();
      return kept.value().lanes[0].loss_sum;
    }
    if (!plan_->LoadWeights(weights_.data()).ok()) std::abort();
    std::vector<engine::LaneResult> results(lanes_.size());
    if (!plan_->ComputeLanes(lanes_, 1.0 / batch, gradient_.data(), absl::MakeSpan(results)).ok()) {
      std::abort();
    }
    double loss_sum = 0;
    for (const engine::LaneResult& lane : results) loss_sum += lane.loss_sum;
    const int64_t count = layout_.weight_floats();  // running statistics follow the weights
    for (int64_t i = 0; i < count; ++i) weights_[i] -= 0.01f * gradient_[i];
    return loss_sum;
  }

  const training::Graph& graph() const { return graph_; }
  const engine::Plan& plan() const { return *plan_; }
  bool kept() const { return batch_.kept != nullptr; }
  // What training needs beside the plan: weights, gradient and a batch.
  int64_t held_bytes() const {
    return static_cast<int64_t>(sizeof(float) *
                                    (images_.size() + weights_.size() + gradient_.size()) +
                                sizeof(int32_t) * labels_.size());
  }
  bool updates_itself() const { return group_ != nullptr; }

 private:
  const training::Graph graph_;
  const training::FlatLayout layout_;
  std::vector<float> images_;
  std::vector<int32_t> labels_, places_;
  std::vector<float> weights_, gradient_;
  engine::SampleBatch batch_;
  std::vector<engine::SampleBatch> lanes_;
  std::unique_ptr<engine::Plan> plan_;
  std::unique_ptr<engine::PlanGroup> group_;  // contains the plan; null: the host updates
};

int Main(const Flags& flags) {
  absl::StatusOr<std::unique_ptr<engine::Device>> device = engine::OpenDevice(flags.device);
  if (!device.ok()) {
    std::cerr << device.status() << "\n";
    return 2;
  }
  engine::Precision precision = engine::Precision::kFp32;
  for (const engine::Precision other :
       {engine::Precision::kTf32, engine::Precision::kBf16, engine::Precision::kFp16}) {
    if (flags.precision == engine::PrecisionName(other)) precision = other;
  }
  nlohmann::json results = nlohmann::json::array();
  std::printf("%-10s %7s %6s %12s %25s %9s %9s %10s\n", "model", "threads", "batch", "samples/s",
              "p10 to p90", "GFLOP/s", "cpu/wall", "planned MB");
  for (const std::string& model : flags.models) {
    for (const int threads : flags.threads) {
      const int lanes =
          flags.lanes > 0 ? flags.lanes : DefaultLanes(flags.device, model, flags.batch);
      Case c(**device, model, flags.batch, lanes, threads, precision, flags.brought,
             flags.host_updates);
      for (int warm = 0; warm < 3; ++warm) c.Step();
      const double start = WallSeconds();
      c.Step();
      const int steps =
          std::max(1, static_cast<int>(flags.seconds / std::max(1e-6, WallSeconds() - start)));
      std::vector<double> rates, busy;
      for (int run = 0; run < flags.runs; ++run) {
        const double wall = WallSeconds(), cpu = CpuSeconds();
        for (int step = 0; step < steps; ++step) c.Step();
        const double took = WallSeconds() - wall;
        rates.push_back(static_cast<double>(steps * flags.batch) / took);
        busy.push_back((CpuSeconds() - cpu) / took);
      }
      const double median = Quantile(rates, 0.5);
      const double low = Quantile(rates, 0.1), high = Quantile(rates, 0.9);
      const double gflops = median * static_cast<double>(c.graph().training_flops()) * 1e-9;
      const double planned = static_cast<double>(c.plan().info().planned_bytes()) * 1e-6;
      std::printf("%-10s %7d %6ld %12.0f %12.0f %12.0f %9.1f %9.2f %10.1f\n", model.c_str(),
                  threads, static_cast<long>(flags.batch), median, low, high, gflops,
                  Quantile(busy, 0.5), planned);
      std::fflush(stdout);
      results.push_back({{"system", "capstan engine, " + (*device)->description()},
                         {"model", model},
                         {"threads", threads},
                         {"batch", flags.batch},
                         {"lanes", lanes},
                         {"dtype", flags.precision},
                         {"images", c.kept() ? "kept" : "brought"},
                         {"updates", c.updates_itself() ? "device" : "host"},
                         {"samples_per_second", median},
                         {"p10", low},
                         {"p90", high},
                         {"runs", rates},
                         {"steps_per_run", steps},
                         {"gflops", gflops},
                         {"planned_bytes", c.plan().info().planned_bytes()},
                         {"held_bytes", c.held_bytes()},
                         {"peak_bytes", PeakBytes()},
                         {"kernels", c.plan().info().kernels}});
    }
  }
  if (!flags.json.empty()) std::ofstream(flags.json) << results.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  capstan::Flags flags;
  CLI::App app("Training steps of the bare engine");
  app.add_option("--device", flags.device, "cpu or cuda:<index>");
  app.add_option("--model", flags.models, "models")->delimiter(',');
  app.add_option("--threads", flags.threads, "threads, one row each")->delimiter(',');
  app.add_option("--precision", flags.precision, "of the products")
      ->check(CLI::IsMember({"fp32", "tf32", "bf16", "fp16"}));
  app.add_flag("--brought", flags.brought, "bring the images in every step");
  app.add_flag("--host-updates", flags.host_updates, "gradient and weights pass through the host");
  app.add_option("--batch", flags.batch, "samples per step")->check(CLI::PositiveNumber);
  app.add_option("--lanes", flags.lanes, "0: as a job")->check(CLI::Range(0, 4096));
  app.add_option("--runs", flags.runs, "runs per row")->check(CLI::PositiveNumber);
  app.add_option("--seconds", flags.seconds, "of a run")->check(CLI::PositiveNumber);
  app.add_option("--json", flags.json, "also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  return capstan::Main(flags);
}
